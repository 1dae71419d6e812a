"""Judges what Flight Recorder has of all ranks: which of them hasn't called what others wait in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gswarm_tui.asking.verdict import MOVED, NAMED, RankProcess, Verdict
from gswarm_tui.common.errors import printable
from gswarm_tui.common.quantities import first_of, held
from gswarm_tui.fleet.findings import MAX_TIME, Evidence
from gswarm_tui.fleet.state import MAX_MESSAGE

STEP = "flight_recorder"
DEFAULT = "default_pg"
"""PyTorch's name of the group in which all ranks are."""
STILL_S = 1.0
"""A rank that waits for less isn't stuck; as ranks are read one after the other, it may only seem to wait."""
_MOST_NUMBER, _MOST_TEXT, _MOST_LINES = 2**53, 60, 32
_PEER = re.compile(r"\d+ ?(?:->|<-) ?(\d{1,9})\b")
_MALFORMED = (AttributeError, LookupError, OverflowError, TypeError, ValueError)


@dataclass(frozen=True)
class _Call:
    """A collective, or a send or receive, with its sizes as text; ``since`` is when it was scheduled."""

    text: str
    since: float

    @property
    def name(self) -> str:
        return self.text.partition(" [")[0]


@dataclass(frozen=True)
class _Place:
    """A rank's progress in a process group, as numbers of collectives; ``now`` is its node's clock."""

    scheduled: int
    started: int
    completed: int
    now: float
    pending: _Call
    transfer: _Call | None


@dataclass(frozen=True)
class _Group:
    """A process group as its ranks reported it; ``members`` are empty if they didn't say."""

    title: str
    members: tuple[int, ...]
    is_default: bool
    places: dict[int, _Place] = field(default_factory=dict)


@dataclass(frozen=True)
class _Wait:
    """Ranks that wait in a call, and those that they wait for; ``lack`` is what these haven't done."""

    call: _Call
    now: float
    title: str
    waiting: AbstractSet[int]
    awaited: AbstractSet[int]
    lack: str
    evidence: tuple[Evidence, ...] = ()

    @property
    def seconds(self) -> float:
        return self.now - self.call.since

    def __str__(self) -> str:
        when = f"{datetime.fromtimestamp(self.call.since).astimezone():%H:%M:%S}"
        wait = "waits" if len(self.waiting) == 1 else "wait"
        who = f"{_ranks(self.waiting)} {wait} in it" if self.waiting else "open"
        return f"{self.call.text}, {self.title}, scheduled at {when}; {who} for {held(self.seconds)}"


def judge(answers: Mapping[str, Mapping[str, Any]], ranks: Sequence[RankProcess]) -> Verdict:
    """Return the verdict from the nodes' answers, in which nothing is trusted."""
    groups, ages, reasons = _read(answers, ranks)
    silent = [f"{one.name}: {reasons.get(one.rank, 'no answer')}" for one in ranks if one.rank not in ages]
    lacks = f"; {first_of(silent, 1)}" if silent else ""
    if not ages:
        return Verdict(STEP, f"no rank has a record{lacks}")
    known = {one.rank: one for one in ranks if one.rank is not None}
    found = (wait for group in groups for wait in _find_waits(group, known.keys(), ages.keys()))
    waits = [wait for wait in found if wait.seconds > STILL_S]
    lines = (*map(str, waits), *silent)[:_MOST_LINES]
    if not waits:
        oldest = max(ages.values())
        if oldest <= STILL_S and not silent:
            return Verdict(STEP, MOVED, decided=True)
        return Verdict(STEP, f"no rank waits; the last call is {held(oldest)} old{lacks}", lines=lines)
    # A rank that others wait for isn't the first if it waits in another group itself.
    waiting = {rank for wait in waits for rank in wait.waiting}
    wait = max(waits, key=lambda one: (bool(one.awaited - waiting), not one.awaited, one.seconds))
    first = wait.awaited - waiting or wait.awaited
    if not first:
        reason = lacks or "; each has called it, so look at the network between them"
        return Verdict(STEP, f"{wait}{reason}", lines=lines)
    behind = tuple(known[rank] for rank in sorted(first) if rank in known)
    further = waiting - wait.waiting - first
    lack = wait.lack.replace("hasn't", "haven't") if len(first) > 1 else wait.lack
    sentence = f"{lack} {wait}" + (f", {_ranks(further)} in other groups" if further else "")
    if not behind:
        return Verdict(STEP, f"{_ranks(first)}, without a process, {sentence}", lines=lines)
    if first & waiting:
        sentence += "; all wait for each other, so they call collectives in different orders"
    return Verdict(STEP, sentence, True, behind, wait.evidence, lines, wait.call.since)


def _find_waits(group: _Group, known: AbstractSet[int], read: AbstractSet[int]) -> Iterator[_Wait]:
    """Yield who waits for whom in the group's first collective that isn't complete, and in transfers."""
    places = group.places
    lowest = min(place.completed for place in places.values())
    # Ranks that have called the collective and haven't completed it.
    front = {rank: place for rank, place in places.items() if place.completed == lowest < place.scheduled}
    if front:
        # Gloo doesn't say who is in a group. Members may have ended, and one may have called nothing in it.
        members = set(group.members) or (known if group.is_default else set())
        absent = {rank for rank in members - places.keys() if rank in read or rank not in known}
        lack, awaited = _find_awaited(places, lowest, front, absent)
        oldest = min(front.items(), key=lambda item: (item[0] in awaited, item[1].pending.since))[1]
        waiting = {rank for rank, place in places.items() if place.scheduled > place.completed} - awaited
        title = f"collective {lowest + 1:,} of group {group.title}"
        highest = max(place.scheduled for place in places.values())
        evidence = (Evidence("collectives_completed", float(lowest), float(highest)),)
        yield _Wait(oldest.pending, oldest.now, title, waiting, awaited, lack, evidence)
    for rank, place in places.items():
        if place.transfer is not None and (peer := _PEER.search(place.transfer.text)):
            at = int(peer[1])
            awaited = {group.members[at] if at < len(group.members) else at} - {rank}
            yield _Wait(place.transfer, place.now, f"group {group.title}", {rank}, awaited, "hasn't joined")


def _find_awaited(
    places: Mapping[int, _Place], lowest: int, front: Mapping[int, _Place], absent: set[int]
) -> tuple[str, set[int]]:
    """Return what ranks lack in the collective after ``lowest``, and which ranks; none if all called it."""
    if late := {rank for rank, place in places.items() if place.scheduled == lowest} | absent:
        return "hasn't called", late
    if len(front) < len(places):
        return "hasn't completed", set(front)
    calls = [place.pending.name for place in front.values()]
    usual = max(calls, key=calls.count)
    if odd := {rank: place for rank, place in front.items() if place.pending.name != usual}:
        return f"called {next(iter(odd.values())).pending.name} instead of", set(odd)
    if any(place.started > lowest for place in front.values()):
        return "hasn't started", {rank for rank, place in front.items() if place.started <= lowest}
    return "", set()


def _ranks(ranks: AbstractSet[int]) -> str:
    words = first_of([f"{rank:,}" for rank in sorted(ranks)], NAMED)
    return f"rank {words}" if len(ranks) == 1 else f"ranks {words}"


def _read(
    answers: Mapping[str, Mapping[str, Any]], ranks: Sequence[RankProcess]
) -> tuple[list[_Group], dict[int, float], dict[int | None, str]]:
    """Return the groups, the age of each rank's newest call in seconds, and why others have none."""
    groups: dict[tuple[Any, ...], _Group] = {}
    ages: dict[int, float] = {}
    reasons: dict[int | None, str] = {}
    for one in ranks:
        answer = answers.get(one.node, {})
        try:
            mine = next((each for each in answer.get("ranks", ()) if each["pid"] == one.pid), answer)
            if "groups" not in mine:
                reasons[one.rank] = printable(str(mine.get("why", "it has ended")))[:MAX_MESSAGE]
            elif one.rank is not None:
                ages[one.rank] = _add(groups, one.rank, mine, answer["members"])
        except _MALFORMED:
            reasons[one.rank] = "its answer can't be understood"
    return [group for group in groups.values() if group.places], ages, reasons


def _add(groups: dict[tuple[Any, ...], _Group], rank: int, reading: Mapping[str, Any], tables: Any) -> float:
    """Add a rank's places to the groups; return the age of its newest call. Raises _MALFORMED."""
    now, ages = _time(reading["now"]), []
    for plain in reading["groups"]:
        name, description, backend = (_text(plain[key]) for key in ("name", "description", "backend"))
        members = tuple(map(_number, tables[_number(plain["members"])]))
        newest = _time(plain["newest"])
        scheduled, started, completed = (_number(plain[key]) for key in ("scheduled", "started", "completed"))
        # PyTorch keeps the last 2,000 calls, so an old one may be lost.
        pending = _call(plain["pending"]) if "pending" in plain else _Call("a call", newest)
        transfer = _call(plain["transfer"]) if "transfer" in plain else None
        group = groups.setdefault(
            (name, description, backend, members),
            _Group(f"{name} ({description})", members, description == DEFAULT),
        )
        group.places[rank] = _Place(scheduled, started, completed, now, pending, transfer)
        ages.append(now - newest)
    return min(ages)


def _call(plain: Mapping[str, Any]) -> _Call:
    sizes = ", ".join(str(list(map(_number, each))) for each in plain["sizes"])
    return _Call(_text(f"{plain['name']} {sizes} {plain['dtype']}").strip(), _time(plain["since"]))


def _number(value: Any) -> int:
    number = int(value)
    if not -1 <= number < _MOST_NUMBER:
        raise ValueError
    return number


def _time(value: Any) -> float:
    seconds = float(value)
    if not 0 <= seconds < MAX_TIME:
        raise ValueError
    return seconds


def _text(value: Any) -> str:
    return printable(str(value))[:_MOST_TEXT]
