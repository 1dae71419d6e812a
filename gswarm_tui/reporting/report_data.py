"""Data of a report's tables, loaded from a recording."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from gswarm_agent.frame import INFO, STEP
from gswarm_tui.analysis.periods import Period
from gswarm_tui.analysis.profiles import longest_kernels, profile_line
from gswarm_tui.analysis.summary_data import ProcessPeaks, Summary, processes, summarize
from gswarm_tui.analysis.summary_text import TextTable
from gswarm_tui.insight.recorded import MOST_SAMPLES, Diagnosis, diagnose
from gswarm_tui.plotting.annotations import MOST_EVENTS
from gswarm_tui.store.figures.definitions import MINE
from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.store.sql.first_events import first_events

Row = dict[str, Any]


@dataclass(frozen=True)
class ReportData:
    """Rows by column name: the recording, its nodes, incidents, other events, marks.

    Not all events were read if ``more_events``. ``profiled`` describes the profiles of the time, empty
    without any, and ``kernels`` are their longest. ``diagnosis`` is None without samples, and with too many.
    """

    recording: Row
    nodes: list[Row]
    summary: Summary
    processes: list[ProcessPeaks]
    incidents: list[Row]
    others: list[Row]
    marks: list[Row]
    more_events: bool
    profiled: str
    kernels: TextTable
    diagnosis: Diagnosis | None


_NODES = f"""
SELECT n.*, count(g.gpu_id) AS gpus, any_value(g.name) AS gpu_name, any_value(g.memory_total_mib) AS gpu_mib,
       any_value(g.power_limit_w) AS power_limit_w
FROM nodes n LEFT JOIN gpus g ON g.node_id = n.node_id AND g.{MINE} AND g.parent_index IS NULL
WHERE n.recording_id = ?
GROUP BY ALL ORDER BY n.node_id
"""  # noqa: S608 (own names)
_EVENTS = first_events(
    "e.kind, e.severity, coalesce(n.node, '') AS node, g.gpu_index AS gpu, "
    "coalesce(e.message, '') AS message, coalesce(e.detail, '') AS detail",
    f"g.{MINE} AND e.kind <> '{STEP}'",
    MOST_EVENTS,
)


def load_report_data(source: QuerySource, period: Period) -> ReportData:
    """Load the data of a period. Raises StoreError."""
    recording = source.query("FROM recordings WHERE recording_id = ?", period.recording_id).dicts()[0]
    rows = source.query(_EVENTS, period.recording_id, period.started_at, period.until).dicts()
    events = [row for row in rows if row["kind"] != "mark"]
    summary = summarize(source, period)
    diagnosis = None
    if summary.whole is not None and summary.whole.samples <= MOST_SAMPLES:
        diagnosis = diagnose(source, period.recording_id, *period.bounds, os.environ)
    return ReportData(
        recording=recording,
        nodes=source.query(_NODES, period.recording_id).dicts(),
        summary=summary,
        processes=processes(source, period),
        incidents=[row for row in events if row["severity"] != INFO],
        others=[row for row in events if row["severity"] == INFO],
        marks=[row for row in rows if row["kind"] == "mark"],
        more_events=len(rows) == MOST_EVENTS,
        profiled=profile_line(source, period),
        kernels=longest_kernels(source, period),
        diagnosis=diagnosis,
    )
