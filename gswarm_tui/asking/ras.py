"""Reports of NCCL RAS: which ranks are dead, fail, or have launched fewer collectives than the others."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from gswarm_tui.asking.verdict import MALFORMED, MOVED, NAMED, RankProcess, Verdict, whole
from gswarm_tui.common.errors import printable
from gswarm_tui.common.quantities import first_of
from gswarm_tui.fleet.findings import Evidence

STEP = "ras"
SAFE = (2, 29, 2)
"""First version of NCCL in which a request to RAS can't corrupt memory of the job."""
_MAX_CHARACTERS = 8 << 20
_MOST_LISTED = 20
"""Communicators that are listed, at most."""
_DEAD, _SILENT, _FAILED, _LEFT = "dead", "unresponsive", "failed", "left"
_HEARD = "with an error that another rank caused"
_SURE = {
    _DEAD: "NCCL considers {} dead",
    _SILENT: "NCCL gets no answer from {}",
    _FAILED: "NCCL reports an error on {}",
}
"""Clauses on ranks by their state, the worst first."""
_RUNS, _REMOTE = (0, 7), 6
"""Results of NCCL: of a rank without an error, and of one that got the error of another."""
# NCCL up to 2.28.9 omits the comma after this field of a missing rank.
_NO_COMMA = re.compile(r'("nvml_dev": -?\d+)(\s+"status")')
_GROUP = re.compile(r"^ *(\d{1,9}) +\d+ +\d+ +[\d-]+ +(\d{1,9}) +\d+ +[A-Z]+ +[A-Z,]+$", re.MULTILINE)
_SECTION = re.compile(r"^#(\d+)-\d+ \(([0-9a-f]{1,16})\) ([A-Z]+)\n((?:(?:  .*)?\n)*)", re.MULTILINE)
_PROCESS = re.compile(r"^  Process (\d{1,9}) on node (\S+) managing ", re.MULTILINE)
_FUNCTION = re.compile(r"  Communicator ranks have different (\w{1,20})")
_RANKS = re.compile(
    r"  (?:Rank (\d{1,9})|(\d{1,9}) ranks)(?: (?:has|have|reported) (.{1,60}?))?"
    r"(?: -- GPU (?:\d+ \(NVML )?\d{1,4}\)? managed by process (\d{1,9}) on node (\S{1,64}))?"
)
_COUNT = re.compile(r"up to operation (\d{1,20})|not launched any")
_UNNAMED = RankProcess("", 0, None)
"""All members of a communicator that a text report doesn't name."""
_Join = Callable[[str, int], RankProcess]


@dataclass
class _Member:
    """A member of a communicator: its state, empty while it runs, and how many collectives it launched."""

    process: RankProcess
    state: str = ""
    counts: Counter[str] = field(default_factory=Counter)


@dataclass
class _Communicator:
    """A communicator; ``members`` are by rank, and text reports name only those that differ."""

    name: str
    size: int
    members: dict[int, _Member] = field(default_factory=dict)

    def counts(self) -> dict[RankProcess, Counter[str]]:
        return {one.process: one.counts for one in self.members.values() if one.counts}

    def behind(self) -> set[RankProcess]:
        """Return the processes that launched fewer collectives than others."""
        counts = self.counts()
        most = max((one.total() for one in counts.values()), default=0)
        return {process for process, one in counts.items() if one.total() < most}

    def __str__(self) -> str:
        counts = self.counts().values()
        words = [f"communicator {self.name}: {self.size:,} ranks"]
        for function in sorted(set().union(*counts)):
            low, high = (edge(one[function] for one in counts) for edge in (min, max))
            words += [f"{function} {low:,}" + (f" to {high:,}" if high > low else "")] if high else []
        states = Counter(one.state for one in self.members.values() if one.state)
        return ", ".join([*words, *(f"{number:,} {state}" for state, number in states.items())])


_Communicators = dict[str, _Communicator]


def why_not(nccl: str, *, force: bool) -> str:
    """Return why RAS of this version of NCCL isn't asked, empty if it is."""
    version = re.match(r"(\d{1,4})\.(\d{1,4})\.(\d{1,4})", nccl)
    if force or (version and tuple(map(int, version.groups())) >= SAFE):
        return ""
    which = f"the job has NCCL {version[0]}" if version else "the job's version of NCCL is unknown"
    return f"{which}; before 2.29.2, RAS could corrupt a job that it is asked about (NCCL issue 1762)"


def judge(first: str, second: str | None, ranks: Sequence[RankProcess]) -> Verdict:
    """Return what two reports show, the second requested a second after the first; None if there is none."""
    try:
        before = _parse(first, ranks)
        now = before if second is None else _parse(second, ranks)
    except MALFORMED:
        return Verdict(STEP, "the report of NCCL RAS is damaged or cut short")
    moved, everyone = _moved(before, now)
    if everyone and everyone.isdisjoint(ranks):
        return Verdict(
            STEP, "NCCL RAS reports on other processes; another job may have answered (NCCL_RAS_ADDR)"
        )
    lines = [str(one) for one in list(now.values())[:_MOST_LISTED]]
    if len(now) > _MOST_LISTED:
        lines.append(f"{len(now) - _MOST_LISTED:,} more communicators")
    verdict = Verdict(STEP, "NCCL RAS reports no communicator", lines=tuple(lines))
    members = [member for one in now.values() for member in one.members.values()]
    for state, clause in _SURE.items():
        if found := {member.process for member in members if member.state == state}:
            return _decide(verdict, clause.format(_names(found)), found, Evidence("NCCL state", state))
    if not now:
        return verdict
    if second is None:
        return replace(verdict, sentence="NCCL RAS answered only once, which doesn't show who is late")
    if moved == everyone and everyone >= set(ranks):
        return _decide(verdict, MOVED)
    if (late := _judge_late(verdict, before, now, moved)) is not None:
        return late
    if moved:
        seen = everyone | set(ranks)
        saw = f"{len(moved):,} of {len(seen):,} ranks moved within a second, and none stays behind"
        return replace(verdict, sentence=saw)
    return replace(verdict, sentence="NCCL RAS names no rank that launched fewer collectives than the others")


def _decide(verdict: Verdict, saw: str, behind: Collection[RankProcess] = (), *evidence: Evidence) -> Verdict:
    return replace(verdict, sentence=saw, decided=True, behind=_sorted(behind), evidence=evidence)


def _judge_late(
    verdict: Verdict, before: _Communicators, now: _Communicators, moved: set[RankProcess]
) -> Verdict | None:
    """Return a verdict on ranks that were behind in both reports and didn't move; None without any."""
    stuck: dict[str, set[RankProcess]] = {}
    waiting: set[RankProcess] = set()
    for key, one in now.items():
        if key in before and (behind := one.behind() & before[key].behind() - moved):
            stuck[key], counts = behind, one.counts()
            fewest = min(counts[process].total() for process in behind)
            waiting |= {process for process, count in counts.items() if count.total() > fewest}
    late = set().union(*stuck.values())
    # A rank that is behind in one communicator because it waits in another isn't at fault.
    if not (culprits := late - waiting - {_UNNAMED}):
        return None
    key = max((key for key in stuck if stuck[key] & culprits), key=lambda key: now[key].size)
    few, counts = _sorted(culprits & stuck[key]), now[key].counts()
    least = counts[few[0]]
    most = max((counts[process] for process in counts.keys() - few), key=Counter.total, default=least)
    function = max(sorted(most | least), key=lambda name: abs(most[name] - least[name]))
    low, high = least[function], most[function]
    alike = {counts[process][function] for process in counts.keys() - few} <= {high}
    others = f"{now[key].size - len(few):,} " if now[key].size - len(few) > 1 else ""
    others = f"the other {others}" if alike else "others up to "
    saw = f"{_names(few)} launched {low:,} {function}s, {others}{high:,}"
    return _decide(verdict, saw, culprits, Evidence(f"{function}s", low, high))


def _sorted(ranks: Collection[RankProcess]) -> tuple[RankProcess, ...]:
    return tuple(sorted(ranks, key=lambda one: (one.rank is None, one.rank or 0, one.node, one.pid)))


def _names(ranks: Collection[RankProcess]) -> str:
    """Return ranks without their places, which the answer names before."""
    return first_of([_name(one) for one in _sorted(ranks)], NAMED)


def _name(one: RankProcess) -> str:
    if one.rank is not None:
        return f"rank {one.rank}"
    return one.name if one.node else f"{one.name} on {one.addresses[0]}"


def _moved(before: _Communicators, now: _Communicators) -> tuple[set[RankProcess], set[RankProcess]]:
    """Return the processes that launched collectives since, and all."""
    totals, earlier = Counter[RankProcess](), Counter[RankProcess]()
    for communicators, sums in ((before, earlier), (now, totals)):
        for one in communicators.values():
            sums.update({process: count.total() for process, count in one.counts().items()})
    return {process for process in totals & earlier if totals[process] > earlier[process]}, set(totals)


def _parse(report: str, ranks: Sequence[RankProcess]) -> _Communicators:
    """Return the communicators of a report by identifier. Raises several errors for what is none."""
    if len(report) > _MAX_CHARACTERS:
        raise ValueError(len(report))
    known = {(address, one.pid): one for one in ranks for address in one.addresses}
    nodes = {address: one.node for one in ranks for address in one.addresses}

    def join(host: str, pid: int) -> RankProcess:
        gone = RankProcess(nodes.get(host, ""), pid, None, addresses=(printable(host[:64]),))
        return known.get((host, pid), gone)

    return _parse_json(report, join) if report.lstrip().startswith("{") else _parse_text(report, join, ranks)


def _parse_json(report: str, join: _Join) -> _Communicators:
    found = {}
    for one in json.loads(_NO_COMMA.sub(r"\1,\2", report))["communicators"]:
        name = printable(f"{one['hash']:.20}")
        communicator = _Communicator(name, whole(one["size"]))
        found[f"{name} {one['secondary_hash']:.50}"] = communicator
        for member in [*one["ranks"], *one["missing_ranks"]]:
            status, counts = member["status"], Counter[str]()
            if "unresponsive" in status:
                state = _DEAD if status["considered_dead"] else _SILENT if status["unresponsive"] else _LEFT
            else:
                results = {whole(status[name]) for name in ("init_state", "async_error")}.difference(_RUNS)
                state = "" if not results else _HEARD if results == {_REMOTE} else _FAILED
                for function, count in member["collective_counts"].items():
                    counts[printable(function[:20])] = whole(count)
            process = join(f"{member['host']:s}", whole(member["pid"]))
            communicator.members[whole(member["rank"])] = _Member(process, state, counts)
    return found


def _parse_text(report: str, join: _Join, ranks: Sequence[RankProcess]) -> _Communicators:
    """Return the communicators of a verbose text report, with the members that it names."""
    if "\nWarnings\n" not in report:
        raise ValueError("cut short")
    found = {f"#{group}": _Communicator(f"#{group}", int(size)) for group, size in _GROUP.findall(report)}
    listed = report.partition("\nDEAD\n")[2].partition("\n\n")[0]
    dead = {join(host, int(pid)) for pid, host in _PROCESS.findall(listed)}
    for group, name, kind, body in _SECTION.findall(report):
        one = found.setdefault(name, _Communicator(name, found[f"#{group}"].size))
        function = words = ""
        unnamed: dict[str, Counter[int]] = {}
        for line in body.split("\n"):
            if match := _FUNCTION.match(line):
                function = match[1]
            if not (match := _RANKS.fullmatch(line[:300])):
                continue
            rank, number, own, pid, host = match.groups()
            words = own or words
            count = _COUNT.search(words)
            value = int(count[1] or 0) if count else 0
            groups = unnamed.setdefault(function, Counter())
            if number and count:
                groups[value] += int(number)
            elif host:
                process = join(host, int(pid))
                member = one.members.setdefault(int(rank), _Member(process))
                if kind == "INCOMPLETE":
                    member.state = _DEAD if process in dead else _SILENT
                elif kind == "ERROR":
                    member.state = _HEARD if words == "Remote process error" else _FAILED
                elif count:
                    member.counts[function] = value
                    groups[value] -= not own
        if kind == "MISMATCH":
            # A communicator of all ranks is among the first.
            whole_job = one.size == len(ranks) and len(found) < _MOST_LISTED
            _add_unnamed(one, unnamed, ranks if whole_job else ())
    return found


def _add_unnamed(one: _Communicator, unnamed: dict[str, Counter[int]], ranks: Sequence[RankProcess]) -> None:
    """Add the members that the report doesn't name, which are others of ``ranks``, and what they launched."""
    named = {member.process for member in one.members.values()}
    others = [rank for rank in ranks if rank not in named] or [_UNNAMED]
    one.members |= {-1 - at: _Member(process) for at, process in enumerate(others)}
    for function, groups in unnamed.items():
        values = [value for value, number in groups.items() if number > 0]
        for member in one.members.values():
            if len(values) > 1:
                # Two groups have half of the ranks each, and the report names neither.
                member.counts.pop(function, None)
            elif values and member.state not in (_DEAD, _SILENT):
                member.counts.setdefault(function, values[0])
