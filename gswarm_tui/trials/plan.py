"""Plan of a trial: its placements, its runs in random order, and what they cost."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from gswarm_tui.common.errors import UserError
from gswarm_tui.common.quantities import plural

PACKED, SPREAD = "packed", "spread"
SPREADS = (PACKED, SPREAD)
MOST_RUNS = 1000


class TrialError(UserError):
    """Raised if a trial can't be planned or run; the message says why and what to do."""


@dataclass(frozen=True, order=True)
class Placement:
    """How many nodes and GPUs a run of the command gets.

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


@dataclass(frozen=True)
class TrialPlan:
    """All that a trial needs to start, and to be resumed.

    ``throughput`` is a pattern whose group is a number in the command's output, ``throughput_mark`` the key
    of a mark's value; without either, wall times are compared. ``floor`` is the efficiency below which a
    trial that plans itself stops, None for a fixed plan. ``salloc`` has the options of the allocation of each
    run, None to run within the surrounding one. ``ntasks_per_node`` is None for a rank on each GPU.
    """

    trial_id: str
    command: tuple[str, ...]
    runs: tuple[TrialRun, ...]
    seed: int = 0
    timeout_s: float | None = None
    throughput: str | None = None
    throughput_mark: str | None = None
    floor: float | None = None
    max_gpu_hours: float | None = None
    salloc: tuple[str, ...] | None = None
    ntasks_per_node: int | None = None

    @property
    def placements(self) -> list[Placement]:
        """The placements that are compared, the smallest first."""
        return sorted({run.placement for run in self.runs if not run.warm_up})

    @property
    def higher_is_better(self) -> bool:
        """Whether throughputs are compared, not wall times."""
        return self.throughput is not None or self.throughput_mark is not None

    def to_json(self) -> str:
        """Return the plan as a JSON object."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> TrialPlan:
        """Return the plan of a JSON object. Raises TrialError."""
        try:
            return cls(**_restored(json.loads(text)))
        except (ValueError, TypeError, KeyError) as error:
            raise TrialError(f"the recording has a trial whose plan can't be read: {error}.") from None


def _restored(values: dict[str, Any]) -> dict[str, Any]:
    runs = tuple(TrialRun(**{**run, "placement": Placement(**run["placement"])}) for run in values["runs"])
    salloc = values.get("salloc")
    return {
        **values,
        "command": tuple(values["command"]),
        "runs": runs,
        "salloc": None if salloc is None else tuple(salloc),
    }
