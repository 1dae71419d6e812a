"""Stacks of all ranks: grouped, the odd ones first, and the ranks that aren't where the others wait.

Two stacks are equal if the frames of the main thread have the same functions, files and lines; frames inside
a collective don't count. Answers come from nodes and aren't trusted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from gswarm_tui.asking.verdict import MOVED, RankProcess, Verdict, names
from gswarm_tui.common.errors import printable
from gswarm_tui.common.quantities import plural
from gswarm_tui.fleet.findings import Evidence

STEP = "stacks"
MOST_FRAMES, MOST_LOOKS, LONGEST = 128, 32, 256
MOST_GROUPS = 64
"""Groups that are shown, at most."""
_FRAME = re.compile(r"(.*) \((?:.*/)?([^/]*:\d+)\)")
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3|\(<")
_STANDARD = re.compile(r"/lib/python3\.\d+\w?/(?!(?:site|dist)-packages/)|\(<")
_COLLECTIVE = re.compile(
    r"(?:P?MPI_|nccl)\w+|all_?(?:reduce|gather|to_?all)\w*|reduce_?scatter\w*|(?:monitored_)?barrier"
    r"|init_process_group|broadcast_object_list|gather_object|scatter_object_list|block_until_ready"
)
# Functions of other libraries have these names, too.
_AMBIGUOUS = frozenset(("wait", "synchronize", "broadcast", "reduce", "gather", "scatter", "send", "recv"))
_COMMUNICATION = re.compile(r"/(?:torch/(?:distributed|cuda)|deepspeed/comm|horovod|mpi4py)/")

Stack = tuple[str, ...]
"""Frames of a main thread, the innermost first, each as "function (file:line)"."""


@dataclass(frozen=True)
class RankStack:
    """The stacks of a rank, one for each look, or why there are none."""

    rank: RankProcess
    looks: tuple[Stack, ...] = ()
    why: str = ""

    @property
    def moved(self) -> bool:
        """Whether its functions changed between the looks; a loop that polls changes lines only."""
        return len({tuple(frame.rpartition(":")[0] for frame in look) for look in self.looks}) > 1


@dataclass(frozen=True)
class StackGroup:
    """Ranks whose last stacks are equal."""

    stack: Stack
    ranks: tuple[RankProcess, ...]

    @property
    def place(self) -> str:
        """The innermost frame outside Python's library, and that of the job's own code."""
        frames = [frame for frame in self.stack if not _STANDARD.search(frame)] or self.stack
        own = [frame for frame in frames if not _LIBRARY.search(frame)]
        return " < ".join(dict.fromkeys(map(_short, (*frames[:1], *own[:1])))) or "no Python code"


def read(answers: Mapping[str, Any], ranks: Sequence[RankProcess]) -> list[RankStack]:
    """Return the stacks of each rank from the nodes' answers."""
    return [_read(answers.get(rank.node), rank) for rank in ranks]


def _read(answer: Any, rank: RankProcess) -> RankStack:
    try:
        values = answer if "why" in answer else answer["stacks"][str(rank.pid)]
        if "why" in values:
            return RankStack(rank, why=printable(values["why"][:LONGEST]))
        first, *others = (_stack(look) for look in values["looks"][:MOST_LOOKS])
        return RankStack(rank, (first, *others))
    except (LookupError, TypeError, ValueError, AttributeError):
        return RankStack(rank, why="its node sent something else than a stack")


def _stack(frames: Any) -> Stack:
    stack = tuple(printable(frame[:LONGEST]) for frame in frames[:MOST_FRAMES])
    return next((stack[at:] for at in reversed(range(len(stack))) if _is_collective(stack[at])), stack)


def _is_collective(frame: str) -> bool:
    function, _, file = frame.partition(" (")
    name = function.rpartition(".")[2]
    return bool(_COLLECTIVE.fullmatch(name) or (name in _AMBIGUOUS and _COMMUNICATION.search(file)))


def _waits(stack: Stack) -> bool:
    return bool(stack) and _is_collective(stack[0])


def _short(frame: str) -> str:
    return f"{found[1]} ({found[2]})" if (found := _FRAME.fullmatch(frame)) else frame


def groups(found: Iterable[RankStack]) -> list[StackGroup]:
    """Return the ranks with equal last stacks, the smallest group first."""
    ranks: dict[Stack, list[RankProcess]] = {}
    for one in found:
        if one.looks:
            ranks.setdefault(one.looks[-1], []).append(one.rank)
    return sorted((StackGroup(stack, tuple(ranks[stack])) for stack in ranks), key=lambda one: len(one.ranks))


def table(found: Sequence[RankStack]) -> tuple[Mapping[str, Any], ...]:
    """Return the groups as plain values, the odd ones first, then the ranks without a stack."""
    missing: dict[str, list[RankProcess]] = {}
    for one in found:
        if not one.looks:
            missing.setdefault(one.why, []).append(one.rank)
    rows = [(group.ranks, group.place, "", group.stack) for group in groups(found)[:MOST_GROUPS]]
    rows += [(tuple(ranks), "", why, ()) for why, ranks in list(missing.items())[:MOST_GROUPS]]
    return tuple(
        {
            "name": _listed(ranks),
            "ranks": [{"rank": one.rank, "node": one.node, "gpu": one.gpu, "pid": one.pid} for one in ranks],
            "place": place,
            "why": why,
            "frames": list(map(_short, frames)),
        }
        for ranks, place, why, frames in rows
    )


def _listed(ranks: Sequence[RankProcess]) -> str:
    """Return ranks as words, as in "rank 5 (gpu03:5)" and "ranks 0-4,6-7"."""
    numbers = sorted(one.rank for one in ranks if one.rank is not None)
    if len(ranks) == 1 or len(numbers) < len(ranks):
        return names(tuple(ranks))
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return "ranks " + ",".join(f"{run[0]}-{run[-1]}" if run[1:] else f"{run[0]}" for run in runs)


def judge(answers: Mapping[str, Any], ranks: Sequence[RankProcess]) -> Verdict:
    """Return the ranks that aren't where most ranks wait.

    Half of the ranks have to stand still in collectives at each look. At fault are those that no look found
    there, whether they move or not.
    """
    found = read(answers, ranks)
    seen = [one for one in found if one.looks]
    still = [one for one in seen if len(one.looks) > 1 and not one.moved]
    rows = table(found)
    lines = tuple(f"{row['name']}: {row['place'] or row['why']}" for row in rows)
    verdict = Verdict(STEP, MOVED, lines=lines, table=rows)
    unread = "".join(f"; {row['name']} can't be read: {row['why']}" for row in rows if row["why"])
    if not seen:
        return replace(verdict, sentence=unread[2:] or "no rank was found")
    if all(one.moved for one in seen) and not unread:
        return replace(verdict, decided=True)
    waiting = [one for one in still if _waits(one.looks[0])]
    behind = [one for one in seen if not any(map(_waits, one.looks))]
    known = bool(waiting and behind)
    if not known:
        stack = groups(still)[-1].stack if still else ()
        waiting = [one for one in still if one.looks[0] == stack]
        behind = [one for one in seen if stack not in one.looks]
    if 2 * len(waiting) < len(seen) + (not known):
        what = f"{sum(one.moved for one in seen)} of {plural(len(found), 'rank')} moved in the last second"
        return replace(verdict, sentence=f"{what}, and no majority stands at one place{unread}")
    where = groups(waiting)[-1].place
    if not behind:
        return replace(verdict, sentence=f"{len(waiting)} of {len(found)} ranks are in {where}{unread}")
    odd, culprits = groups(behind)[0].place, tuple(one.rank for one in behind)
    others = "the other" if len(waiting) + len(behind) == len(found) else "others:"
    subject = "it is" if len(culprits) == 1 else "they are"
    sentence = f"{subject} in {odd}, {others} {len(waiting):,} in {where}{unread}"
    # Idle workers of a server and the stages of a pipeline have such stacks, too, so nobody is accused.
    if not known:
        sentence = f"{names(culprits)}: {sentence}, which is no collective that gswarm-tui knows"
        return replace(verdict, sentence=sentence)
    evidence = (Evidence("stack", odd, where),)
    return replace(verdict, sentence=sentence, decided=True, behind=culprits, evidence=evidence)
