"""Ranks as agents report them, and what one step found out about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gswarm_agent.frame import gpu_label
from gswarm_tui.common.quantities import first_of
from gswarm_tui.fleet.findings import Evidence

NAMED = 4
"""Ranks that a sentence names; it counts the others."""
MOVED = "all ranks moved in the last second"
MALFORMED = (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError)
"""Errors of reading an answer that has another form than expected."""


@dataclass(frozen=True)
class RankProcess:
    """A rank that an agent reported; ``gpu`` is its GPU's index on the node, None if unknown.

    ``addresses`` are the IP addresses of its node, ``state`` is the process's letter as ps prints it. A rank
    without a process has the pid 0, and no node if that is unknown.
    """

    node: str
    pid: int
    rank: int | None
    gpu: int | None = None
    framework: str = ""
    nccl: str = ""
    addresses: tuple[str, ...] = ()
    state: str = ""
    world_size: int | None = None
    ras: str = ""

    @property
    def place(self) -> str:
        """Node and GPU, as in "gpu03:5"."""
        return self.node if self.gpu is None else f"{self.node}:{gpu_label(self.gpu)}"

    @property
    def name(self) -> str:
        """Rank and place, as in "rank 5 (gpu03:5)"."""
        what = f"process {self.pid}" if self.rank is None else f"rank {self.rank}"
        return f"{what} ({self.place})" if self.node else what


@dataclass(frozen=True)
class Verdict:
    """Verdict of one step on the job's ranks.

    ``step`` is its name and ``sentence`` a clause on what it saw. ``decided`` ends the ladder; ``behind`` are
    the ranks at fault, empty if all of them moved. ``since`` is the time from which they are behind, Unix
    seconds, None if unknown. ``lines`` are further lines for people, and
    ``table`` has their values for programs.
    """

    step: str
    sentence: str
    decided: bool = False
    behind: tuple[RankProcess, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    lines: tuple[str, ...] = ()
    since: float | None = None
    table: tuple[Mapping[str, Any], ...] = ()


def names(ranks: tuple[RankProcess, ...]) -> str:
    """Return ranks as words: the first few with their places, the others counted."""
    return first_of([one.name for one in ranks], NAMED)


def whole(value: Any) -> int:
    """Return a number of an answer, -1 or more. Raises ValueError if it is none."""
    if type(value) is not int or not -1 <= value < 2**64:
        raise ValueError(value)
    return value
