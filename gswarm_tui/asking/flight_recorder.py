"""Judges what Flight Recorder has of all ranks: which of them hasn't called what others wait in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gswarm_tui.asking.verdict import MALFORMED, MOVED, NAMED, RankProcess, Verdict, whole
from gswarm_tui.common.errors import printable
from gswarm_tui.common.quantities import first_of, held
from gswarm_tui.fleet.findings import MAX_TIME, Evidence
from gswarm_tui.fleet.state import MAX_MESSAGE

STEP = "flight_recorder"
DEFAULT = "default_pg"
"""PyTorch's name of the group in which all ranks are."""
STILL_S = 1.0
"""A rank that waits for less isn't stuck; as ranks are read one after the other, it may only seem to wait."""
_MOST_TEXT, _MOST_LINES = 60, 32


@dataclass(frozen=True)
class _Group:
    """A process group, which is the same on two ranks if all of this is; Gloo omits ``members``."""

    name: str
    description: str
    backend: str
    members: tuple[int, ...]


@dataclass(frozen=True)
class _Place:
    """A rank's progress in a group, as numbers of collectives.

    ``pending`` is its first call that isn't complete, scheduled at ``since``, ``waited`` seconds ago.
    ``transfer`` is whether a send or receive isn't complete.
    """

    scheduled: int
    started: int
    completed: int
    pending: str
    since: float
    waited: float
    transfer: bool


_Places = dict[int, _Place]


@dataclass(frozen=True)
class _Wait:
    """Ranks that wait in a call, and those that they wait for; ``lack`` is what these haven't done."""

    call: _Place
    title: str
    waiting: AbstractSet[int]
    awaited: AbstractSet[int]
    lack: str
    evidence: tuple[Evidence, ...]

    def __str__(self) -> str:
        when = f"{datetime.fromtimestamp(self.call.since).astimezone():%H:%M:%S}"
        wait = "waits" if len(self.waiting) == 1 else "wait"
        who = f"{_ranks(self.waiting)} {wait} in it" if self.waiting else "open"
        return f"{self.call.pending}, {self.title}, scheduled at {when}; {who} for {held(self.call.waited)}"


def judge(answers: Mapping[str, Mapping[str, Any]], ranks: Sequence[RankProcess]) -> Verdict:
    """Return the verdict from the nodes' answers, in which nothing is trusted."""
    groups: dict[_Group, _Places] = {}
    ages: dict[int, float] = {}
    silent = []
    for one in ranks:
        try:
            answer = answers[one.node]
            mine = next((each for each in answer.get("ranks", ()) if each["pid"] == one.pid), answer)
            if "groups" not in mine:
                why = printable(str(mine.get("why", "it has ended")))[:MAX_MESSAGE]
                silent.append(f"{one.name}: {why}")
            elif one.rank is not None:
                ages[one.rank] = _add(groups, one.rank, mine)
        except MALFORMED:
            silent.append(f"{one.name}: its answer can't be understood")
    lacks = f"; {first_of(silent, 1, ' ranks')}" if silent else ""
    if not ages:
        return Verdict(STEP, f"no rank has a record{lacks}")
    found = [_find_wait(group, places, ages.keys()) for group, places in groups.items()]
    waits = [wait for wait in found if wait is not None and wait.call.waited > STILL_S]
    lines = (*map(str, waits), *silent)[:_MOST_LINES]
    if not waits:
        oldest = max(ages.values())
        if oldest <= STILL_S and not silent:
            return Verdict(STEP, MOVED, decided=True)
        return Verdict(STEP, f"no rank waits; the last call is {held(oldest)} old{lacks}", lines=lines)
    # A rank that others wait for isn't the first if it waits in another group itself.
    waiting = {rank for wait in waits for rank in wait.waiting}
    wait = max(waits, key=lambda one: (bool(one.awaited - waiting), one.call.waited))
    first = wait.awaited - waiting
    if not first:
        why = "all wait for each other" if wait.awaited else "each has called it, so look at the network"
        return Verdict(STEP, f"{wait}{lacks or f'; {why}'}", lines=lines)
    sentence = f"{'has' if len(first) == 1 else 'have'}n't {wait.lack} {wait}"
    transfers = {rank for places in groups.values() for rank in places if places[rank].transfer}
    if first & transfers:
        sentence += f"; {_ranks(first & transfers)} may wait in a send or receive"
        return Verdict(STEP, f"{_ranks(first)} {sentence}", lines=lines)
    behind = tuple(one for one in ranks if one.rank in first)
    return Verdict(STEP, sentence, True, behind, wait.evidence, lines, wait.call.since)


def _find_wait(group: _Group, places: _Places, read: AbstractSet[int]) -> _Wait | None:
    """Return who waits for whom in the group's first collective that isn't complete on all ranks."""
    lowest = min(place.completed for place in places.values())
    opened = [place for place in places.values() if place.completed == lowest < place.scheduled]
    if not opened:
        return None
    # Gloo doesn't say who is in a group, and a member may have called nothing in it.
    members = set(group.members) or (read if group.description == DEFAULT else set())
    everyone = places.keys() | (members & read)
    progress = {
        "called": {rank for rank, place in places.items() if place.scheduled > lowest},
        "completed": {rank for rank, place in places.items() if place.completed > lowest},
        "started": {rank for rank, place in places.items() if place.started > lowest},
    }
    lack = next((word for word, ranks in progress.items() if ranks and ranks != everyone), "")
    awaited = everyone - progress[lack] if lack else set[int]()
    waiting = {rank for rank, place in places.items() if place.scheduled > place.completed} - awaited
    title = f"collective {lowest + 1:,} of group {group.name} ({group.description})"
    highest = max(place.scheduled for place in places.values())
    evidence = (Evidence("collectives_completed", float(lowest), float(highest)),)
    return _Wait(max(opened, key=lambda one: one.waited), title, waiting, awaited, lack, evidence)


def _add(groups: dict[_Group, _Places], rank: int, reading: Mapping[str, Any]) -> float:
    """Add a rank's places to the groups; return the age of its newest call. Raises MALFORMED."""
    now, newest = _time(reading["now"]), []
    for plain in reading["groups"]:
        newest.append(_time(plain["newest"]))
        # PyTorch keeps the last 2,000 calls, so an old one may be lost.
        call = plain.get("pending") or {"text": "a call", "since": newest[-1]}
        since = _time(call["since"])
        scheduled, started, completed = (whole(plain[key]) for key in ("scheduled", "started", "completed"))
        text, waited, transfer = _text(call["text"]), now - since, bool(plain["transfer"])
        place = _Place(scheduled, started, completed, text, since, waited, transfer)
        name, description, backend = (_text(plain[key]) for key in ("name", "description", "backend"))
        group = _Group(name, description, backend, tuple(map(whole, plain["members"])))
        groups.setdefault(group, {})[rank] = place
    return now - max(newest)


def _ranks(ranks: AbstractSet[int]) -> str:
    words = first_of([f"{rank:,}" for rank in sorted(ranks)], NAMED)
    return f"rank {words}" if len(ranks) == 1 else f"ranks {words}"


def _time(value: Any) -> float:
    seconds = float(value)
    if not 0 <= seconds < MAX_TIME:
        raise ValueError
    return seconds


def _text(value: Any) -> str:
    return printable(str(value))[:_MOST_TEXT]
