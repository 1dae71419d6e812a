"""Reads the lines of the recordings in a file by few queries over sums by minute and small tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

from gswarm_tui.analysis.comparison import final_mark_values
from gswarm_tui.analysis.periods import Period, load_periods
from gswarm_tui.analysis.summary_data import RecordingTotals, load_totals
from gswarm_tui.fleet.findings import SEVERITIES
from gswarm_tui.fleet.names import natural_key
from gswarm_tui.runs.line import (
    FINISHED,
    MOST_FINDINGS,
    NO_END,
    RUN_PREFIX,
    RUNNING,
    RunFinding,
    RunLine,
    size_and_time,
)
from gswarm_tui.store.figures.definitions import BUSY, MINE
from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.store.transfer.parquet import RUN

TABLES = (
    *("recordings", "nodes", "gpus", "sessions", "events", "findings"),
    *("gpu_samples", "host_samples", "process_samples", "gpu_minutes"),
)
"""The tables that ``read_lines`` queries."""
_FACTS = f"""
SELECT recording_id, {RUN}, coalesce(user_name, ''), coalesce(host, ''), coalesce(slurm_cluster, ''),
       coalesce(command, ''), recording_id IN (SELECT recording_id FROM events WHERE kind = 'mark'),
       (SELECT [avg(cpu_iowait_pct), avg(disk_read_mb_s)] FROM host_samples JOIN nodes n USING (node_id)
        WHERE n.recording_id = r.recording_id),
       (SELECT median(TRY_CAST(TRY_CAST(detail AS JSON) ->> 'seconds' AS DOUBLE)) FROM events e
        WHERE kind = 'step' AND e.recording_id = r.recording_id)
FROM recordings r
"""  # noqa: S608 (own names)
_MACHINES = f"""
SELECT recording_id, list(DISTINCT node), list(DISTINCT driver_version), list(DISTINCT g.name) FILTER ({MINE})
FROM nodes LEFT JOIN gpus g USING (node_id) GROUP BY recording_id
"""  # noqa: S608 (own names)
_SOFTWARE = f"""
SELECT recording_id, list(DISTINCT framework), list(DISTINCT 'NCCL ' || nccl)
FROM process_samples JOIN gpus USING (gpu_id) JOIN nodes USING (node_id) WHERE {MINE} GROUP BY recording_id
"""  # noqa: S608 (own names)
_CLOCKS = f"""
SELECT recording_id, avg(sm_clock_mhz)
FROM gpu_samples JOIN gpus USING (gpu_id) JOIN nodes USING (node_id) WHERE {MINE} AND {BUSY}
GROUP BY recording_id
"""  # noqa: S608 (own names)
_FINDINGS = f"""
SELECT recording_id, kind, severity, coalesce(node, ''), gpu_index, coalesce(uuid, ''), coalesce(gpu_hours, 0)
FROM findings LEFT JOIN (
  SELECT recording_id, node, gpu_index, arg_max(uuid, gpu_id) AS uuid
  FROM gpus JOIN nodes USING (node_id) GROUP BY recording_id, node, gpu_index
) USING (recording_id, node, gpu_index)
WHERE dismissed IS NOT TRUE
ORDER BY coalesce(list_position({list(SEVERITIES)}, severity), 9), gpu_hours DESC NULLS LAST, since
"""  # noqa: S608 (own names)


def read_lines(source: QuerySource) -> list[RunLine]:
    """Return a line for each recording in a file. Raises StoreError, and OSError if the file is gone."""
    path = source.path.absolute()
    size, mtime_ns = size_and_time(path)
    if path.name.startswith(RUN_PREFIX):
        size = sum(file.stat().st_size for file in path.parents[1].glob(f"*/{path.name}/**/*.parquet"))
    periods = load_periods(source)
    recordings = [one for one in periods if one.session_id is None]
    facts, machines, software, clocks = (
        {row[0]: row[1:] for row in source.query(sql).rows()}
        for sql in (_FACTS, _MACHINES, _SOFTWARE, _CLOCKS)
    )
    findings, figures = source.query(_FINDINGS).rows(), load_totals(source, recordings)
    lines = []
    for period in recordings:
        number = period.recording_id
        totals = figures.get(number, RecordingTotals())
        run, user, host, cluster, command, marked, input_means, step_s = facts[number]
        nodes, drivers, models = machines.get(number, ((), (), ()))
        sessions = [one for one in periods if one.session_id is not None and one.recording_id == number]
        name, name_s = _name(period, sessions, path)
        line = RunLine(
            path=str(path),
            size=size,
            mtime_ns=mtime_ns,
            recording_id=number,
            run=run,
            name=name,
            name_s=name_s,
            sessions=tuple(dict.fromkeys(one.name for one in sessions)),
            user=user,
            host=host,
            cluster=cluster,
            job=period.job,
            command=command,
            nodes=tuple(sorted(_known(nodes), key=natural_key)),
            gpus=totals.gpus,
            gpu_models=_known(models),
            started_at=period.bounds[0],
            ended_at=None if period.ended_at is None else period.ended_at.replace(tzinfo=UTC).timestamp(),
            seconds=period.seconds,
            state=_state(period, source, recordings),
            energy_j=totals.energy_j,
            util_mean_pct=totals.util_mean_pct,
            coverage=totals.coverage,
            findings=tuple(RunFinding(*row[1:]) for row in findings if row[0] == number)[:MOST_FINDINGS],
            marks=final_mark_values(source, period) if marked else {},
            driver=", ".join(_known(drivers)),
            software=tuple(each for listed in software.get(number, ()) for each in _known(listed)),
            sm_clock_mhz=None if period.thinned_at else clocks.get(number, (None,))[0],
            iowait_pct=input_means and input_means[0],
            disk_read_mb_s=input_means and input_means[1],
            step_s=step_s,
            thinned=period.thinned_at is not None,
        )
        lines.append(line)
    return lines


def _known(values: Sequence[Any] | None) -> tuple[str, ...]:
    return tuple(sorted(value for value in values or () if value))


def _name(period: Period, sessions: Sequence[Period], path: Path) -> tuple[str, float]:
    longest = max(sessions, key=lambda one: one.seconds, default=None)
    if longest is not None and 2 * longest.seconds > period.seconds:
        return longest.name, longest.seconds
    if period.job:
        return f"job {period.job}", period.seconds
    return (path.parents[1] if path.name.startswith(RUN_PREFIX) else path).stem, period.seconds


def _state(period: Period, source: QuerySource, recordings: Sequence[Period]) -> str:
    if period.ended_at is not None:
        return FINISHED
    return RUNNING if source.running and period is recordings[-1] else NO_END
