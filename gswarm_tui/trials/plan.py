"""Plan of a trial: its placements, and its runs in random order."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from gswarm_tui.common.errors import UserError
from gswarm_tui.common.quantities import plural

PACKED, SPREAD = "packed", "spread"
MOST_RUNS = 500
"""Runs of a plan, which is passed on in an environment variable: Linux limits one to 128 KiB."""


class TrialError(UserError):
    """Raised if a trial can't be planned or run; the message says why and what to do."""


@dataclass(frozen=True, order=True)
class Placement:
    """Number of nodes and of GPUs that a run of the command gets.

    ``spread`` is ``packed`` (on the fewest nodes) or ``spread`` (the same number of GPUs on as many nodes as
    there are).
    """

    nodes: int
    gpus_per_node: int
    spread: str = PACKED

    @property
    def gpus(self) -> int:
        """The number of GPUs of all nodes."""
        return self.nodes * self.gpus_per_node

    @property
    def short(self) -> str:
        """The placement in names of sessions and files."""
        return f"{self.nodes}x{self.gpus_per_node}" + (f"-{SPREAD}" if self.spread == SPREAD else "")

    def __str__(self) -> str:
        spread = f" {SPREAD}" if self.spread == SPREAD else ""
        return f"{plural(self.nodes, 'node')} × {plural(self.gpus_per_node, 'GPU')}{spread}"


@dataclass(frozen=True)
class TrialRun:
    """One run of the command; ``number`` counts from 1 in the order of the plan, ``repeat`` from 1.

    The warm-up run comes first and isn't compared.
    """

    number: int
    placement: Placement
    repeat: int
    warm_up: bool = False

    @property
    def session(self) -> str:
        """The name of the run's session."""
        return "trial-warm-up" if self.warm_up else f"trial-{self.placement.short}-{self.repeat}"

    def __str__(self) -> str:
        return f"{self.placement}, {'warm-up' if self.warm_up else f'repeat {self.repeat}'}"


@dataclass(frozen=True)
class TrialPlan:
    """All that a trial needs to start.

    ``throughput`` is a pattern whose group is a number in the command's output; without it, wall times are
    compared. ``ntasks_per_node`` is None for a rank on each GPU. ``srun`` has more options of each step.
    """

    trial_id: str
    command: tuple[str, ...]
    runs: tuple[TrialRun, ...]
    timeout_s: float | None = None
    throughput: str | None = None
    ntasks_per_node: int | None = None
    srun: tuple[str, ...] = ()

    @property
    def placements(self) -> list[Placement]:
        """The placements that are compared, the smallest first."""
        return sorted({run.placement for run in self.runs if not run.warm_up})

    @property
    def higher_is_better(self) -> bool:
        """Whether throughputs are compared, not wall times."""
        return self.throughput is not None

    @property
    def unit(self) -> int:
        """The amount of work to which GPU time and energy refer: one run, or 1,000 units of throughput."""
        return 1000 if self.higher_is_better else 1

    def to_json(self) -> str:
        """Return the plan as a JSON object."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> TrialPlan:
        """Return the plan of a JSON object, which may come from a recording. Raises ValueError."""
        try:
            values = json.loads(text)
            runs = [TrialRun(**{**run, "placement": Placement(**run["placement"])}) for run in values["runs"]]
            words = {name: tuple(values[name]) for name in ("command", "srun")}
            plan = cls(**{**values, **words, "runs": tuple(runs)})
            if min(min(one.nodes, one.gpus_per_node) for one in plan.placements) < 1:
                raise ValueError("a placement has no GPUs")
        except (TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError("it isn't the plan of a trial") from error
        return plan


def placements_of(
    node_counts: Sequence[int] | None,
    gpus_per_node: Sequence[int] | None,
    spreads: Sequence[str],
    available: Mapping[str, int],
) -> list[Placement]:
    """Return the placements to try, the smallest first, on nodes with so many GPUs.

    Without ``node_counts`` they are 1, 2, 4 … and all nodes, without ``gpus_per_node`` all GPUs of a node.
    Raises TrialError for a placement that the nodes can't have.
    """
    if not gpus_per_node:
        gpus_per_node = (min(available.values(), default=0),)
        if gpus_per_node[0] < 1:
            raise TrialError(
                "Slurm counts no GPUs of the job; name the number of each node with --gpus-per-node."
            )
    found: dict[tuple[int, int], Placement] = {}
    for gpus in gpus_per_node:
        most = _nodes_with(gpus, available)
        # 1, 2, 4 … and all of them
        doubled = [*(1 << power for power in range(max(0, most - 1).bit_length())), most]
        for nodes in node_counts or doubled:
            if nodes > most or not most:
                raise TrialError(
                    f"no placement on {plural(max(nodes, 1), 'node')} with {plural(gpus, 'GPU')}: the job "
                    f"has {plural(most, 'such node')}; name smaller --node-counts or --gpus-per-node."
                )
            packed = Placement(nodes, gpus)
            if PACKED in spreads:
                found.setdefault((nodes, gpus), packed)
            if SPREAD in spreads and (wider := _spread(packed, available)) is not None:
                found.setdefault((wider.nodes, wider.gpus_per_node), wider)
    if not found:
        raise TrialError(
            "no placement can be spread over more nodes than it needs; add packed to --placements, or name "
            "smaller --node-counts."
        )
    return sorted(found.values(), key=lambda one: (one.gpus, one.nodes, one.spread))


def _nodes_with(gpus: int, available: Mapping[str, int]) -> int:
    return sum(count >= gpus for count in available.values())


def ordered_runs(placements: Sequence[Placement], repeats: int, seed: str) -> tuple[TrialRun, ...]:
    """Return the warm-up run, on the smallest placement, then all runs in random order.

    Each repeat has all placements once (a randomised block design), so that a drift of the cluster meets all
    of them alike. Raises TrialError for too many runs.
    """
    total = len(placements) * repeats + 1
    if total > MOST_RUNS:
        raise TrialError(f"this plan has {total:,} runs; {MOST_RUNS:,} are possible: use a lower --repeat.")
    shuffled = random.Random(seed)  # noqa: S311 - an order, not a secret
    order = [
        (one, repeat)
        for repeat in range(1, repeats + 1)
        for one in shuffled.sample(placements, len(placements))
    ]
    smallest = min(placements, key=lambda one: (one.gpus, one.nodes))
    runs = [TrialRun(1, smallest, 1, warm_up=True)]
    return (*runs, *(TrialRun(number, *each) for number, each in enumerate(order, 2)))


def _spread(packed: Placement, available: Mapping[str, int]) -> Placement | None:
    """Return a placement of as many GPUs on the most nodes; None if no more nodes can share them evenly."""
    for nodes in range(min(packed.gpus, len(available)), packed.nodes, -1):
        each = packed.gpus // nodes
        if packed.gpus % nodes == 0 and _nodes_with(each, available) >= nodes:
            return Placement(nodes, each, SPREAD)
    return None
