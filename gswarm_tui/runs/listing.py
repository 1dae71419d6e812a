"""Lists of runs as a table of text, and as data."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any

from gswarm_tui.analysis.summary_text import TextTable, share
from gswarm_tui.common.quantities import DASH, duration, energy, first_of, gpu_time, percent
from gswarm_tui.runs.line import NO_END, RUN_PREFIX, RUNNING, RunLine
from gswarm_tui.slurm import hosts
from gswarm_tui.store.querying.results import Result

_HALF_A_YEAR_S = 182 * 86_400
_FINDINGS_NAMED = 4
_SIGNS = {RUNNING: "+", NO_END: "?"}
"""Signs behind the time of a run that is still recorded, and of one whose recorder was killed."""
NAMES = ("started", "name", "job", "GPUs", "time", "energy", "util", "finding")
"""Columns that fit 80 cells; more follow where there is room."""
_MORE = ("coverage", "nodes", "sessions", "user", "file")


def run_table(lines: Sequence[RunLine], now: float | None = None, zone: tzinfo | None = None) -> TextTable:
    """Return a row for each run, with times in a zone (None: local), in fewer cells as of ``now``."""
    rows = [
        (
            _started(line.started_at, now, zone),
            line.name,
            line.job or DASH,
            f"{line.gpus}{' sim' * line.simulated}",
            duration(line.seconds) + _SIGNS.get(line.state, ""),
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


def _started(at: float, now: float | None, zone: tzinfo | None) -> str:
    """Format a start; as of ``now`` without the year or, after half a year, without the time of day."""
    form = "%Y-%m-%d %H:%M"
    if now is not None:
        form = "%m-%d %H:%M" if abs(now - at) < _HALF_A_YEAR_S else "%Y-%m-%d"
    return f"{datetime.fromtimestamp(at, UTC).astimezone(zone):{form}}"


def finding_text(line: RunLine) -> str:
    """Return a run's first finding, and how many more there are."""
    if not line.findings:
        return ""
    first, more = line.findings[0], len(line.findings) - 1
    return f"{first.kind} {first.subject}".rstrip() + (f" +{more}" if more else "")


def opening_command(line: RunLine) -> str:
    """Return the command that shows a run.

    It is attach while the run is recorded, import for an export, summary for a thinned run, else replay.
    """
    path = Path(line.path)
    if path.name.startswith(RUN_PREFIX):
        return f"gswarm-tui import {shlex.quote(str(path.parents[1]))}"
    db = f"--db={shlex.quote(line.path)}"
    if line.state == RUNNING:
        return f"gswarm-tui attach {db}"
    return f"gswarm-tui {'summary' if line.thinned else 'replay'} {db} 'recording {line.recording_id}'"


def run_facts(line: RunLine) -> list[tuple[str, str]]:
    """Return labelled lines on a run: where it ran, its findings with their cost, and how to open it."""
    costs = (f" ({gpu_time(3600 * one.gpu_hours)})" if one.gpu_hours else "" for one in line.findings)
    found = [
        f"{one.kind} {one.subject}".rstrip() + cost for one, cost in zip(line.findings, costs, strict=True)
    ]
    return [
        ("nodes", " · ".join((hosts.fold(line.nodes), *line.gpu_models))),
        ("findings", first_of(found, _FINDINGS_NAMED) or "none"),
        ("open with", opening_command(line)),
    ]


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
