"""Profiles of a recording: their statistics as tables, and their ranks side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gswarm_tui.analysis.kernel_names import short_names
from gswarm_tui.analysis.periods import Period
from gswarm_tui.analysis.summary_text import TextTable
from gswarm_tui.common.quantities import DASH, brief_time, count, megabytes, percent, plural
from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.store.sql import profile_views

MOST_ROWS = 500
"""Rows of a table that the screen shows."""
MOST_RANKS = 64
LONGEST_KERNELS = 10
_NAME_MOST = 60

_PROFILES = """
SELECT profile_id, recording_id, coalesce(file, '') AS file, coalesce(tool, '') AS tool,
       coalesce(node, '') AS node, rank, started_at, ended_at
FROM profiles
WHERE started_at IS NOT NULL AND ended_at IS NOT NULL
ORDER BY started_at, profile_id LIMIT 1000
"""
_MESSAGES = "SELECT unnest(TRY_CAST(messages AS VARCHAR[])) FROM profiles WHERE profile_id = ?"
_NO_KERNEL = f"""
SELECT no_kernel_pct FROM ({profile_views.GPUS}) WHERE profile_id = ? AND no_kernel_pct IS NOT NULL
"""  # noqa: S608 (own names)
_MEMORY = f"""
SELECT t.total_ns, t.time_pct, t.calls, t.avg_ns, s.total_mb, s.avg_mb, coalesce(t.name, '')
FROM ({profile_views.MEMORY_TIME_SUM}) t
JOIN ({profile_views.MEMORY_SIZE_SUM}) s USING (profile_id, name)
WHERE profile_id = ? ORDER BY t.total_ns DESC LIMIT {MOST_ROWS}
"""  # noqa: S608 (own names)
_METRICS = {
    "time": "gpu__time_duration.sum",
    "SM": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "memory": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "warps": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
"""Metrics of Nsight Compute by the heading of their column."""
_CHOSEN = ", ".join(f"max(number) FILTER (metric = '{metric}')" for metric in _METRICS.values())
_LAUNCHES = f"""
SELECT launch, {_CHOSEN}, max(unit) FILTER (metric = '{_METRICS["time"]}'), any_value(kernel)
FROM ({profile_views.METRICS})
WHERE profile_id = ? GROUP BY launch ORDER BY launch LIMIT {MOST_ROWS}
"""  # noqa: S608 (own names)
_UNITS = {"nsecond": "ns", "usecond": "µs", "us": "µs", "msecond": "ms", "second": "s"}
"""Units as older and newer versions of ncu name them, where they aren't our own."""
_IN_PERIOD = "recording_id = ? AND started_at < ? AND ended_at > ?"
_TOOLS = f"SELECT DISTINCT tool FROM profiles WHERE {_IN_PERIOD} AND tool IS NOT NULL"  # noqa: S608 (own names)
_RANKS = f"""
WITH run AS (
  SELECT profile_id, rank, row_number() OVER (PARTITION BY rank ORDER BY profile_id DESC) AS place
  FROM profiles WHERE {_IN_PERIOD} AND rank IS NOT NULL
)
SELECT rank, coalesce(name, ''), TRY_CAST(sum(duration_ns) AS BIGINT)
FROM profile_kernel_events
JOIN run USING (profile_id)
LEFT JOIN profile_names USING (name_id)
WHERE place = 1
GROUP BY ALL
"""  # noqa: S608 (own names)
_LONGEST = f"""
WITH kernels AS (
  SELECT profile_id, name_id, duration_ns FROM profile_kernel_events
  UNION ALL SELECT profile_id, name_id, duration_ns FROM trace_kernel_events WHERE kind <> 'copy'
), sums AS (
  SELECT name_id, sum(duration_ns) AS total, count(*) AS calls
  FROM kernels
  WHERE profile_id IN (SELECT profile_id FROM profiles WHERE {_IN_PERIOD})
  GROUP BY name_id
)
SELECT total::DOUBLE, 100 * total / nullif(sum(total) OVER (), 0), calls, total / calls, coalesce(name, '')
FROM sums
LEFT JOIN profile_names USING (name_id)
ORDER BY total DESC LIMIT {LONGEST_KERNELS}
"""  # noqa: S608 (own numbers)
_IDLE = f"""
SELECT count(DISTINCT p.profile_id), coalesce(sum(kernels), 0)::BIGINT,
       count(DISTINCT coalesce(gpu_id::VARCHAR,
         concat_ws(' ', p.node, coalesce('rank ' || p.rank, 'pid ' || pid), device))) FILTER (kernels > 0),
       CASE WHEN count(p.unread) = 0
         THEN 100 * (1 - sum(least(kernel_s, captured_s)) / nullif(sum(captured_s), 0)) END
FROM profiles p
LEFT JOIN (FROM ({profile_views.GPUS}) UNION ALL FROM ({profile_views.TRACE_GPUS})) g USING (profile_id)
LEFT JOIN (SELECT profile_id, min(pid) AS pid FROM trace_op_events GROUP BY profile_id) USING (profile_id)
WHERE p.{_IN_PERIOD} AND p.tool <> 'ncu'
"""  # noqa: S608 (own names)
_MEASURED = f"""
SELECT count(DISTINCT profile_id), count(DISTINCT (profile_id, launch))
FROM profiles LEFT JOIN profile_metric_values USING (profile_id)
WHERE {_IN_PERIOD} AND tool = 'ncu'
"""  # noqa: S608 (own names)


@dataclass(frozen=True)
class Profile:
    """An imported report; times are naive UTC."""

    profile_id: int
    recording_id: int | None
    file: str
    tool: str
    node: str
    rank: int | None
    started_at: datetime
    ended_at: datetime

    @property
    def seconds(self) -> float:
        """Duration of the capture."""
        return max(0.0, (self.ended_at - self.started_at).total_seconds())

    @property
    def origin(self) -> str:
        """Tool, node and rank: "nsys, gpu01, rank 3"."""
        return ", ".join([self.tool, self.node] + ([] if self.rank is None else [f"rank {self.rank}"]))


@dataclass(frozen=True)
class ProfileDetails:
    """A profile's tables by the name of their view, and each GPU's share of time without a kernel."""

    tables: dict[str, TextTable]
    no_kernel_pct: list[float]


def load_profiles(source: QuerySource) -> list[Profile]:
    """Return all profiles of a file, oldest first. Raises UserError, StoreError."""
    return [Profile(**row) for row in source.query(_PROFILES).dicts()]


def profile_details(source: QuerySource, profile: Profile) -> ProfileDetails:
    """Return the tables of a profile. Raises UserError, StoreError."""
    number = profile.profile_id
    if profile.tool == "ncu":
        kernels = _launches(source, number)
    else:
        kernels = _times(source, profile_views.KERNEL_SUM, number, "kind", "kernel")
    sizes: Shown = {"size": megabytes, "mean size": megabytes}
    tables = {
        "kernels": kernels,
        "API": _times(source, profile_views.API_SUM, number, "layer", "call"),
        "memory": table_of(source.query(_MEMORY, number).rows(), _TIMES | sizes | {"operation": text}),
        "ranges": _times(source, profile_views.RANGE_SUM, number, "range"),
        "OS": _times(source, profile_views.OS_SUM, number, "call"),
        "ranks": rank_table(source, profile),
    }
    tables["messages"] = message_table(source, profile)
    return ProfileDetails(tables, [share for (share,) in source.query(_NO_KERNEL, number).rows()])


def message_table(source: QuerySource, profile: Profile) -> TextTable:
    """Return what the profiler or the import reported. Raises UserError, StoreError."""
    messages = [(line,) for (line,) in source.query(_MESSAGES, profile.profile_id).rows() if line]
    return TextTable(("message",), messages, frozenset())


def _share(value: float | None) -> str:
    return DASH if value is None else f"{value:.1f} %"


def text(value: str | None) -> str:
    """Return a text of a table, a dash without one."""
    return value or DASH


Shown = dict[str, Callable[[Any], str]]
"""Columns of a table, with the functions that show their values."""
_TIMES: Shown = {"total": brief_time, "share": _share, "calls": "{:,}".format, "mean": brief_time}


def table_of(rows: Iterable[Sequence[Any]], columns: Shown) -> TextTable:
    """Return a table of rows, with short names of kernels if these are the last column."""
    shown = [tuple(show(value) for show, value in zip(columns.values(), row, strict=True)) for row in rows]
    if tuple(columns)[-1] == "kernel":
        names = short_names([row[-1] for row in shown])
        shown = [(*row[:-1], name) for row, name in zip(shown, names, strict=True)]
    right = frozenset(at for at, show in enumerate(columns.values()) if show is not text)
    return TextTable(tuple(columns), shown, right)


def _times(source: QuerySource, view: str, profile_id: int, *texts: str) -> TextTable:
    """Return the times of a view's names, which are the last of the texts."""
    columns = ", ".join([*texts[:-1], "name"])
    query = (
        f"SELECT total_ns, time_pct, calls, avg_ns, median_ns, max_ns, {columns} FROM ({view}) "  # noqa: S608
        f"WHERE profile_id = ? ORDER BY total_ns DESC LIMIT {MOST_ROWS}"
    )
    names: Shown = {"median": brief_time, "longest": brief_time, **dict.fromkeys(texts, text)}
    return table_of(source.query(query, profile_id).rows(), _TIMES | names)


def _launches(source: QuerySource, profile_id: int) -> TextTable:
    rows = [
        (launch, DASH if time is None else f"{time:,.1f} {_UNITS.get(unit, unit or '')}", *shares, kernel)
        for launch, time, *shares, unit, kernel in source.query(_LAUNCHES, profile_id).rows()
    ]
    columns: Shown = {"launch": str, **dict.fromkeys(_METRICS, _share), "time": str, "kernel": text}
    return table_of(rows, columns)


def rank_table(source: QuerySource, profile: Profile) -> TextTable:
    """Return the time of each kernel on each rank, of the profiles that ran at the same time."""
    span = profile.recording_id, profile.ended_at, profile.started_at
    found = source.query(_RANKS, *span).rows()
    ranks = sorted({rank for rank, *_ in found})[:MOST_RANKS]
    by_kernel: dict[str, dict[int, int]] = {}
    for rank, name, total in found:
        by_kernel.setdefault(name, {})[rank] = total or 0
    differences = {
        name: _difference([times.get(rank, 0) for rank in ranks]) for name, times in by_kernel.items()
    }
    rows = []
    sorted_names = sorted(by_kernel, key=lambda name: -differences[name][0])[:MOST_ROWS]
    for name, short in zip(sorted_names, short_names(sorted_names), strict=True):
        times = (brief_time(by_kernel[name].get(rank)) for rank in ranks)
        rows.append((short[:_NAME_MOST], brief_time(differences[name][0]), differences[name][1], *times))
    names = ("kernel", "difference", "ratio", *(f"rank {rank}" for rank in ranks))
    return TextTable(names, rows if len(ranks) > 1 else [], frozenset(range(1, len(names))))


def _difference(times: Sequence[int]) -> tuple[int, str]:
    """Return the difference of the longest and the shortest time, and their ratio."""
    least, most = min(times, default=0), max(times, default=0)
    return most - least, f"{most / least:.2f} ×" if least else DASH


def longest_kernels(source: QuerySource, period: Period) -> TextTable:
    """Return the kernels of a period's profiles that took the longest, of all ranks together."""
    span = period.recording_id, period.until, period.started_at
    return table_of(source.query(_LONGEST, *span).rows(), _TIMES | {"kernel": text})


def profile_line(source: QuerySource, period: Period) -> str:
    """Return the profiles of a period in words, with the share without a kernel; empty without any."""
    span = period.recording_id, period.until, period.started_at
    tools = {tool for (tool,) in source.query(_TOOLS, *span).rows()}
    parts = []
    if tools - {"ncu"}:
        ((profiles, kernels, gpus, idle),) = source.query(_IDLE, *span).rows()
        if kernels:
            parts.append(
                f"{plural(profiles, 'profile')}, {count(kernels)} kernels on {plural(gpus, 'GPU')}, "
                f"no kernel running for {percent(idle)} of the capture"
            )
        else:
            parts.append(f"{plural(profiles, 'profile')} without kernels")
    if "ncu" in tools:
        ((measured, launches),) = source.query(_MEASURED, *span).rows()
        parts.append(f"{plural(measured, 'profile')} of ncu with metrics of {plural(launches, 'kernel')}")
    return "; ".join(parts)
