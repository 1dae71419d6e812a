"""Lemons: nodes and GPUs that findings name in several runs of a list."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import NamedTuple

from gswarm_agent.frame import gpu_label
from gswarm_tui.fleet.findings import NOTE
from gswarm_tui.fleet.names import natural_key
from gswarm_tui.insight.notes import OF_NODES
from gswarm_tui.runs.line import RunFinding, RunLine
from gswarm_tui.slurm import hosts
from gswarm_tui.store.querying.results import Result

LEAST_RUNS = 3
"""Runs in which findings name a lemon; after as many without one, it isn't left out any more."""
_SLOWEST = {"slow_steps", "input_straggler", "rank_behind"}
"""Kinds that name the slowest rank, which healthy GPUs share among them by chance."""
_TYPES = ("VARCHAR", "INTEGER", "INTEGER", "INTEGER", "INTEGER", "DATE", "VARCHAR", "VARCHAR")


class Lemon(NamedTuple):
    """A node, or a GPU of it, that findings name in ``named_in`` of ``runs`` runs on the node.

    ``clean_since`` counts the newest of them in a row without such a finding. ``last_on`` is the day on which
    the last one with it began (UTC).
    """

    node: str
    gpu_index: int | None
    named_in: int
    runs: int
    clean_since: int
    last_on: date
    kinds: str
    uuid: str

    @property
    def text(self) -> str:
        """The lemon as in "gpu03:5 in 4 of 9 runs (thermal), last on 2026-11-20"."""
        where = self.node if self.gpu_index is None else f"{self.node}:{gpu_label(self.gpu_index)}"
        return f"{where} in {self.named_in} of {self.runs} runs ({self.kinds}), last on {self.last_on}"


def find(lines: Iterable[RunLine]) -> list[Lemon]:
    """Return the lemons among runs, those in most runs first. A GPU is known by its UUID."""
    on_node = defaultdict[str, list[RunLine]](list)
    named = defaultdict[tuple[str, str], dict[str, list[RunFinding]]](dict)
    for line in sorted(lines, key=lambda one: one.started_at):
        if not line.simulated:
            for node in line.nodes:
                on_node[node].append(line)
            for one in line.findings:
                if one.node in line.nodes and one.severity != NOTE and one.kind in OF_NODES | _SLOWEST:
                    named[one.node, one.uuid or one.subject].setdefault(line.run, []).append(one)
    # Faults of GPUs that aren't lemons count for their node.
    for (node, whom), by_run in list(named.items()):
        if whom != node and len(by_run) < LEAST_RUNS:
            for run, found in by_run.items():
                if faults := [one for one in found if one.kind not in _SLOWEST]:
                    of_node = (replace(one, gpu_index=None, uuid="") for one in faults)
                    named[node, node].setdefault(run, []).extend(of_node)
    lemons = []
    for (node, _), by_run in named.items():
        if len(by_run) >= LEAST_RUNS:
            runs, found = on_node[node], [one for each in by_run.values() for one in each]
            last = max(at for at, line in enumerate(runs) if line.run in by_run)
            lemon = Lemon(
                *(node, found[-1].gpu_index, len(by_run), len(runs), len(runs) - 1 - last),
                datetime.fromtimestamp(runs[last].started_at, UTC).date(),
                ", ".join(sorted({one.kind for one in found})),
                found[-1].uuid,
            )
            lemons.append(lemon)
    return sorted(lemons, key=lambda one: (-one.named_in, natural_key(one.node), one.gpu_index or 0))


def exclude_line(lemons: Iterable[Lemon]) -> str:
    """Return the line for a job script that leaves out lemons; empty if none was at fault lately."""
    nodes = {one.node for one in lemons if one.clean_since < LEAST_RUNS}
    return f"#SBATCH --exclude={hosts.fold(nodes)}" if nodes else ""


def lemon_result(lemons: Iterable[Lemon]) -> Result:
    """Return the lemons as data."""
    return Result(Lemon._fields, _TYPES, iter([list(lemons)]))
