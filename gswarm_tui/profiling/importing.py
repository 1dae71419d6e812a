"""Import of one report or trace of a profiler into a recording."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from gswarm_tui.control.client import running_heads
from gswarm_tui.control.profiles import SentProfile
from gswarm_tui.profiling.bounds import MEMORY_MIB, bounded
from gswarm_tui.profiling.ncu_report import NcuReport
from gswarm_tui.profiling.nsys_events import NsysEvents
from gswarm_tui.profiling.nsys_export import UNREADABLE, NsysExport
from gswarm_tui.profiling.nsys_facts import read_facts
from gswarm_tui.profiling.pytorch_trace import is_trace, open_trace
from gswarm_tui.profiling.report_text import ReportError
from gswarm_tui.profiling.tools import exported
from gswarm_tui.store.recording.database import writing_profile
from gswarm_tui.store.recording.profiles import UNKNOWN, ProfileFacts, ProfileWriter, RowTarget

SUFFIXES = (".nsys-rep", ".qdrep", ".sqlite", ".ncu-rep", ".qdstrm")
"""Names of reports end with one of these."""


@dataclass(frozen=True)
class ImportedProfile:
    """Result of an import: the number of the profile, its rows and facts, and what its user should know."""

    profile_id: int
    rows: int
    facts: ProfileFacts
    notices: tuple[str, ...]


def is_report(path: Path) -> bool:
    """Return whether a file is a profiler's report: by its name, a trace of PyTorch by its beginning."""
    return path.is_file() and (path.suffix in SUFFIXES or is_trace(path))


def import_report(
    path: Path,
    db: Path,
    environ: Mapping[str, str],
    *,
    node: str | None = None,
    rank: int | None = None,
    report: Callable[[float], None] = lambda _share: None,
    memory_mib: int = MEMORY_MIB,
) -> ImportedProfile:
    """Import a report into a recording file, which is created if it doesn't exist; all of it or nothing.

    Args:
        node: name of its node in the recording, if the caller knows better than the report.
        rank: rank of its process, likewise.
        report: called with the share done, from 0 to 1.
        memory_mib: memory that the import may take.

    Raises:
        ReportError: the report can't be read.
        StoreError: the file can't be written, or has this report already.
    """

    def place(facts: ProfileFacts) -> ProfileFacts:
        return replace(facts, node=node or facts.node, rank=facts.rank if rank is None else rank)

    try:
        path.open("rb").close()
    except OSError as error:
        raise ReportError(f"{path} can't be read: {error.strerror}.") from None
    targets: list[ProfileWriter] = []
    with bounded(path, memory_mib), contextlib.ExitStack() as stack:
        file = stack.enter_context(_exported(path, environ))

        def begin(facts: ProfileFacts) -> RowTarget:
            if file != path:
                # SQLite has opened the export: without a name, the file also goes after a SIGKILL.
                file.unlink()
            targets.append(stack.enter_context(_writer(db, place(facts), environ)))
            return targets[0]

        rows, facts, notices = _read_report(path, file, begin, report, environ)
        target, facts = targets[0], place(facts)
        target.finish(replace(facts, messages=(*facts.messages, *notices)))
    if not target.at_its_time:
        started = datetime.fromtimestamp(facts.started_ns // 10**9, UTC)
        notices.append(
            f"the recording has no samples of the profile's time, {started:%Y-%m-%d %H:%M:%S} UTC; "
            "name the recording of that time with --db."
        )
    if not target.on_known_node:
        node = f"the node of {path}" if facts.node == UNKNOWN else f"the node {facts.node}"
        notices.append(
            f"the recording doesn't have {node}, so no samples belong to the profile; name it with --node."
        )
    return ImportedProfile(target.profile_id, rows, facts, tuple(notices))


def _read_report(
    path: Path,
    file: Path,
    begin: Callable[[ProfileFacts], RowTarget],
    report: Callable[[float], None],
    environ: Mapping[str, str],
) -> tuple[int, ProfileFacts, list[str]]:
    """Write a report's rows; return their number, its facts and what was left out. Raises ReportError.

    ``file`` is the report at ``path`` or its export. ``begin`` gets what the report says of itself before its
    events are read, and returns where they are written.
    """
    if path.suffix == ".ncu-rep":
        measured = NcuReport(path, environ)
        facts = measured.facts(path.name)
        return measured.write(begin(facts)), facts, [measured.notice] * bool(measured.notice)
    if path.suffix in (".json", ".gz"):
        with open_trace(path, report) as trace:
            rows = trace.write(begin(trace.facts()))
            return rows, trace.facts(), trace.notices()
    with contextlib.closing(NsysExport(file, str(path))) as export:
        try:
            facts = read_facts(export, path.name)
            events = NsysEvents(export, begin(facts), report)
            rows = events.run()
        except UNREADABLE as error:
            if str(error) == "interrupted":  # SQLite replaces the exception of Ctrl-C by its own
                raise KeyboardInterrupt from None
            raise export.unreadable(error) from error
    if events.span_ns is not None:
        # The capture may begin before sampling, which the report notes.
        first, last = (facts.zero_ns + at for at in events.span_ns)
        facts = replace(facts, started_ns=min(facts.started_ns, first), ended_ns=max(facts.ended_ns, last))
    return rows, replace(facts, unread=events.unread), events.notices()


@contextlib.contextmanager
def _writer(db: Path, facts: ProfileFacts, environ: Mapping[str, str]) -> Iterator[ProfileWriter]:
    """Open a file for a profile, through the recorder that has it open, if one has. Raises StoreError."""
    if (head := next((one for one in running_heads(environ) if one.records(db)), None)) is not None:
        with contextlib.closing(SentProfile(head, facts)) as sent:
            yield sent
    else:
        with writing_profile(db, facts) as stored:
            yield stored


@contextlib.contextmanager
def _exported(path: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """Export a report that only nsys can read; return the file to read. Raises ReportError."""
    if path.suffix == ".qdstrm":
        raise ReportError(
            f"{path} isn't a report yet: the nsys that wrote it had no importer. "
            "Convert it with QdstrmImporter where Nsight Systems is installed as a whole."
        )
    if path.suffix in (".nsys-rep", ".qdrep"):
        with exported(path, environ) as file:
            yield file
    else:
        yield path
