"""Reading of one report into a recording, whatever profiler wrote it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from gswarm_tui.profiling.ncu_report import NcuReport
from gswarm_tui.profiling.nsys_events import NsysEvents
from gswarm_tui.profiling.nsys_export import UNREADABLE, NsysExport
from gswarm_tui.profiling.nsys_facts import read_facts
from gswarm_tui.profiling.pytorch_trace import open_trace
from gswarm_tui.store.recording.profiles import ProfileFacts, RowTarget


def read_report(
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
            raise export.unreadable(error) from error
    if events.span_ns is not None:
        # The capture may begin before sampling, which the report notes.
        first, last = (facts.zero_ns + at for at in events.span_ns)
        facts = replace(facts, started_ns=min(facts.started_ns, first), ended_ns=max(facts.ended_ns, last))
    return rows, replace(facts, unread=events.unread), events.notices()
