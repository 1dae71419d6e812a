"""Lists of runs as a table of text, and as data."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from gswarm_tui.analysis.summary_text import TextTable, share
from gswarm_tui.common.quantities import DASH, duration, energy, percent
from gswarm_tui.runs.line import FINISHED, RUNNING, RunLine
from gswarm_tui.slurm import hosts
from gswarm_tui.store.querying.results import Result

_HALF_A_YEAR_S = 182 * 86_400
NAMES = ("started", "name", "job", "GPUs", "time", "energy", "util", "finding")
"""Columns that fit 80 cells; more follow where there is room."""
_MORE = ("coverage", "nodes", "sessions", "user", "file")


def run_table(lines: Sequence[RunLine]) -> TextTable:
    """Return a row for each run, with local times."""
    rows = [
        (
            _started(line.started_at),
            line.name,
            line.job or DASH,
            str(line.gpus),
            duration(line.seconds) + {FINISHED: "", RUNNING: " so far"}.get(line.state, ", no end"),
            energy(line.energy_j),
            percent(line.util_mean_pct),
            finding_text(line),
            share(line.coverage),
            hosts.fold(line.nodes),
            ", ".join(line.sessions),
            line.user,
            line.path,
        )
        for line in lines
    ]
    return TextTable((*NAMES, *_MORE), rows, frozenset({0, 3, 4, 5, 6, 8}))


def _started(at: float) -> str:
    """Format a local time; without the time of day if it is more than half a year ago, as ``ls`` does."""
    recent = abs(time.time() - at) < _HALF_A_YEAR_S
    return f"{datetime.fromtimestamp(at, UTC).astimezone():{'%m-%d %H:%M' if recent else '%Y-%m-%d'}}"


def finding_text(line: RunLine) -> str:
    """Return a run's first finding, and how many more there are."""
    if not line.findings:
        return ""
    first, more = line.findings[0], len(line.findings) - 1
    return f"{first.kind} {first.subject}".rstrip() + (f" +{more}" if more else "")


_COLUMNS: dict[str, tuple[str, Callable[[RunLine], Any]]] = {
    "run": ("VARCHAR", lambda line: line.run),
    "file": ("VARCHAR", lambda line: line.path),
    "file_bytes": ("BIGINT", lambda line: line.size),
    "recording_id": ("INTEGER", lambda line: line.recording_id),
    "name": ("VARCHAR", lambda line: line.name),
    "sessions": ("VARCHAR[]", lambda line: list(line.sessions)),
    "started_at": ("TIMESTAMP", lambda line: _utc(line.started_at)),
    "ended_at": ("TIMESTAMP", lambda line: None if line.ended_at is None else _utc(line.ended_at)),
    "duration_s": ("DOUBLE", lambda line: line.seconds),
    "state": ("VARCHAR", lambda line: line.state),
    "slurm_job_id": ("VARCHAR", lambda line: line.job or None),
    "slurm_cluster": ("VARCHAR", lambda line: line.cluster or None),
    "user_name": ("VARCHAR", lambda line: line.user),
    "host": ("VARCHAR", lambda line: line.host),
    "command": ("VARCHAR", lambda line: line.command),
    "nodes": ("VARCHAR[]", lambda line: list(line.nodes)),
    "gpus": ("INTEGER", lambda line: line.gpus),
    "gpu_models": ("VARCHAR[]", lambda line: list(line.gpu_models)),
    "energy_j": ("DOUBLE", lambda line: line.energy_j),
    "energy_kwh": ("DOUBLE", lambda line: None if line.energy_j is None else line.energy_j / 3.6e6),
    "util_mean_pct": ("DOUBLE", lambda line: line.util_mean_pct),
    "coverage": ("DOUBLE", lambda line: line.coverage),
    "sm_clock_mhz": ("DOUBLE", lambda line: line.sm_clock_mhz),
    "driver_version": ("VARCHAR", lambda line: line.driver or None),
    "software": ("VARCHAR[]", lambda line: list(line.software)),
    "findings": ("VARCHAR[]", lambda line: [f"{one.kind} {one.subject}".rstrip() for one in line.findings]),
    "finding_gpu_hours": ("DOUBLE", lambda line: sum(one.gpu_hours for one in line.findings)),
    "marks": ("MAP(VARCHAR, DOUBLE)", lambda line: dict(line.marks)),
}


def _utc(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC).replace(tzinfo=None)


def run_result(lines: Sequence[RunLine]) -> Result:
    """Return the runs as data, with times in UTC."""
    rows = [tuple(value(line) for _, value in _COLUMNS.values()) for line in lines]
    return Result(tuple(_COLUMNS), tuple(kind for kind, _ in _COLUMNS.values()), iter([rows]))
