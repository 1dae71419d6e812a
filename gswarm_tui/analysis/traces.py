"""A PyTorch trace of one rank beside those of other ranks: times by iteration, waits, kernels, operators."""

from __future__ import annotations

from typing import Any

from gswarm_tui.analysis.kernel_names import short_names
from gswarm_tui.analysis.profiles import MOST_ROWS, Profile, Shown, message_table, table_of, text
from gswarm_tui.analysis.summary_text import TextTable
from gswarm_tui.common.quantities import DASH, brief_time
from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.store.sql import trace_views

_SAME_TIME = """
SELECT profile_id FROM profiles
WHERE tool = 'pytorch' AND recording_id = ? AND started_at <= ? AND ended_at >= ?
"""
_RANKS = f"""
SELECT rank, node, iteration, duration_ms, compute_ms, communication_ms, copy_ms, idle_ms, overlapped_ms
FROM ({trace_views.RANKS}) WHERE profile_id IN ({_SAME_TIME})
ORDER BY iteration, rank, profile_id LIMIT {MOST_ROWS}
"""  # noqa: S608 (own names)
_WAITS = f"""
SELECT sum(wait_ms) AS waited, count(*), max(wait_ms), last_rank, rank,
       CASE WHEN wait_ms IS NULL THEN 'no partner' ELSE concat(ranks, ' of ' || group_size) END AS traced,
       collective, process_group
FROM ({trace_views.WAITS})
WHERE profile_id IN ({_SAME_TIME}) AND rank IS DISTINCT FROM last_rank
GROUP BY ALL ORDER BY waited DESC NULLS LAST LIMIT {MOST_ROWS}
"""  # noqa: S608 (own names)
_SUMS = """
SELECT sum(duration_ns)::DOUBLE AS total, count(*), avg(duration_ns), max(duration_ns), {kind},
       coalesce(any_value(name), '')
FROM {table} LEFT JOIN profile_names USING (name_id)
WHERE profile_id = ? GROUP BY name_id, {kind} ORDER BY total DESC LIMIT {most}
"""


def trace_tables(source: QuerySource, profile: Profile) -> dict[str, TextTable]:
    """Return the tables of a trace by the name of their view. Raises UserError, StoreError."""
    span = profile.recording_id, profile.ended_at, profile.started_at
    ranks = ("rank", "node", "iteration", "time", "compute", "communication", "copy", "idle", "overlapped")
    waits = ("waited", "times", "longest", "for rank", "rank", "traced ranks", "collective", "group")
    return {
        "ranks": _table(source, _RANKS, span, ranks, text=("node",)),
        "waits": _table(source, _WAITS, span, waits, text=("collective", "group")),
        "kernels": _sums(source, profile, "trace_kernel_events", "kind"),
        "operators": _sums(source, profile, "trace_op_events", "category"),
        "messages": message_table(source, profile),
    }


def _table(
    source: QuerySource, query: str, values: tuple[Any, ...], names: tuple[str, ...], text: tuple[str, ...]
) -> TextTable:
    """Return a table whose numbers with a fraction are milliseconds."""
    rows = [tuple(map(_shown, row)) for row in source.query(query, *values).rows()]
    return TextTable(names, rows, frozenset(at for at, name in enumerate(names) if name not in text))


def _shown(value: Any) -> str:
    if value is None:
        return DASH
    return brief_time(value * 1e6) if isinstance(value, float) else str(value)


def _sums(source: QuerySource, profile: Profile, table: str, kind: str) -> TextTable:
    query = _SUMS.format(table=table, kind=kind, most=MOST_ROWS)
    found = source.query(query, profile.profile_id).rows()
    kernels = [name for *_, what, name in found if what in ("compute", "communication")]
    shown = dict(zip(kernels, short_names(kernels), strict=True))
    rows = [(*row[:-1], shown.get(row[-1], row[-1])) for row in found]
    times: Shown = {"total": brief_time, "calls": "{:,}".format, "mean": brief_time, "longest": brief_time}
    return table_of(rows, times | {kind: text, "name": text})
