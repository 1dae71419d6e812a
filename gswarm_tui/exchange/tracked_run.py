"""A session or recording as experiment trackers take it: one run with all nodes, means over time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import groupby

from gswarm_agent.frame import gpu_label
from gswarm_tui.analysis.comparison import final_mark_values
from gswarm_tui.analysis.periods import Period
from gswarm_tui.analysis.summary_data import summarize
from gswarm_tui.exchange.time_windows import sample_in, sample_span, within
from gswarm_tui.fleet.names import natural_key
from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.store.sql.views import OWN, VIEWS

POINT_S, MOST_POINTS = 10, 1000
"""Seconds of a point, or a multiple of them in a run that would have more points: trackers draw fewer."""
ENTRIES = {".wandb": "wandb", ".mlflow": "mlflow.db"}
"""The only entry of a folder with an export for W&B or MLflow, by the folder's suffix.

Such a folder without the suffix isn't replaced: it may hold runs that the user's own programs wrote.
"""
_GPU = ("util_pct", "mem_used_mib", "power_w", "temp_c", "sm_clock_mhz")
_HOST = ("cpu_pct", "host_memory_used_mib")
_FACTS = """
SELECT list(DISTINCT node) AS nodes, count(DISTINCT gpu_id) AS gpus, list(DISTINCT g.name) AS gpu_models,
       list(DISTINCT driver_version) AS driver_version, list(DISTINCT cuda_version) AS cuda_version,
       bool_or(simulated) AS simulated, any_value(r.interval_ms) AS interval_ms,
       any_value(tool_version) AS gswarm_tui, any_value(slurm_job_id) AS slurm_job_id,
       any_value(slurm_cluster) AS slurm_cluster
FROM recordings r JOIN nodes USING (recording_id) LEFT JOIN gpus g USING (node_id) WHERE recording_id = ?
"""


@dataclass(frozen=True)
class TrackedRun:
    """A run of an experiment tracker: texts and numbers that stay, and final figures."""

    name: str
    tags: list[str]
    config: dict[str, object]
    summary: dict[str, float]


def describe(source: QuerySource, period: Period) -> TrackedRun:
    """Return the facts and figures of a period. No user and no command line: trackers share runs."""
    (facts,) = source.query(_FACTS, period.recording_id).dicts()
    config = {
        key: sorted(filter(None, value), key=natural_key) if isinstance(value, list) else value
        for key, value in facts.items()
        if value is not None
    }
    tags = ["gswarm-tui", *(["simulated"] if facts["simulated"] else [])]
    if period.job:
        tags.append(f"job {period.job}")
    marks = final_mark_values(source, period)
    figures = {"duration_s": period.seconds} | {f"marks/{name}": value for name, value in marks.items()}
    if (whole := summarize(source, period).whole) is not None:
        figures |= {
            key: value
            for key, value in asdict(whole).items()
            if isinstance(value, int | float) and key not in ("gpu_index", "rank")
        }
    config |= {"started_at": f"{period.started_at.isoformat()}Z", "note": period.note}
    return TrackedRun(period.name, tags, config, figures)


def points(
    source: QuerySource, period: Period, *, all_gpus: bool
) -> Iterator[tuple[int, int, dict[str, float]]]:
    """Yield a step, the seconds from the start to its end, and its means, named as ``gpu03/0.util_pct``.

    Values of hosts are named as ``gpu03/cpu_pct``. Raises StoreError.
    """
    point_s = POINT_S * max(1, math.ceil(period.seconds / (POINT_S * MOST_POINTS)))

    def means(view: str, columns: tuple[str, ...], index: str) -> str:
        rows = VIEWS[view].rows.replace(OWN, "") if all_gpus else VIEWS[view].rows
        step = f"(epoch_us(s.ts) - {round(1e6 * period.bounds[0])} - 1) // {point_s * 1_000_000}"
        inside = f"{within(*sample_span(period))} AND {sample_in(period, 's.interval_ms')}"
        values = ", ".join(f"avg(s.{name})::DOUBLE AS {name}" for name in columns)
        return (
            f"SELECT greatest(0, {step}) AS step, s.node, {index} AS gpu_index, {values} FROM ({rows}) s "  # noqa: S608
            f"WHERE s.recording_id = {period.recording_id} AND {inside} GROUP BY ALL"
        )

    gpus, hosts = means("samples", _GPU, "s.gpu_index"), means("hosts", _HOST, "NULL::INTEGER")
    found = source.query(f"({gpus}) UNION ALL BY NAME ({hosts}) ORDER BY step, node, gpu_index")
    names = found.names
    rows = (dict(zip(names, row, strict=True)) for batch in found.batches for row in batch)
    for step, at_once in groupby(rows, key=lambda row: int(row["step"])):
        values = {}
        for row in at_once:
            gpu = "" if row["gpu_index"] is None else f"{gpu_label(row['gpu_index'])}."
            for name in _HOST if row["gpu_index"] is None else _GPU:
                if row[name] is not None:
                    values[f"{row['node']}/{gpu}{name}"] = row[name]
        yield step, point_s * (step + 1), values
