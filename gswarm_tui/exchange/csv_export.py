"""Export of samples to a CSV table, with a row for each time and GPU, host or process.

Text is UTF-8, lines end with a line feed, quotes are doubled, unmeasured values are empty. Times are ISO 8601
in UTC with microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from gswarm_agent.metrics import GPU_COLUMNS, HOST_COLUMNS, PROCESS_COLUMNS
from gswarm_tui.analysis.periods import Period
from gswarm_tui.exchange.time_windows import micros, windows
from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.store.sql.schema import literal

_NODES = "JOIN nodes n USING (node_id)"
_GPUS = f"JOIN gpus g USING (gpu_id) {_NODES}"
_GPU_NAMES = {"gpu_index": "g.gpu_index", "uuid": "g.uuid", "gpu_name": "g.name"}


def _own(names: tuple[str, ...]) -> dict[str, str]:
    return {name: f"s.{name}" for name in names}


_TABLES: dict[str, tuple[str, dict[str, str]]] = {
    "gpu": (f"gpu_samples s {_GPUS}", _GPU_NAMES | _own(("interval_ms", *GPU_COLUMNS))),
    "host": (f"host_samples s {_NODES}", _own(("interval_ms", "late_ms", "missed", *HOST_COLUMNS))),
    "process": (
        f"process_samples s {_GPUS}",
        _GPU_NAMES | _own(("pid", "rank", "local_rank", "user_name", "command", *PROCESS_COLUMNS)),
    ),
    "events": (
        "events s LEFT JOIN nodes n ON n.node_id = s.node_id LEFT JOIN gpus g ON g.gpu_id = s.gpu_id",
        {"gpu_index": "g.gpu_index"} | _own(("kind", "severity", "message", "detail")),
    ),
}
TABLES = tuple(_TABLES)
_TEXTS = frozenset(
    {"node", "uuid", "gpu_name", "user_name", "command", "kind", "severity", "message", "detail"}
)


def write_csv(
    source: QuerySource, spans: list[Period], table: str, out: TextIO, report: Callable[[float], None]
) -> int:
    """Write one of the ``TABLES`` and return the number of rows. Raises StoreError, OSError.

    The column ``session`` is empty for a whole recording.
    """
    joined, columns = _TABLES[table]
    out.write(",".join(("recording", "session", "time", "node", *columns)) + "\n")
    rows = 0
    for done, period in enumerate(spans):

        def report_part(share: float, done: int = done) -> None:
            report((done + share) / len(spans))

        per_second = source.query(
            f"SELECT count(*) FROM gpus JOIN nodes USING (node_id) WHERE recording_id = {period.recording_id}"  # noqa: S608
        ).rows()[0][0]
        for since, until in windows(
            micros(period.started_at), micros(period.until), 1_000_000, per_second, report_part
        ):
            query = _query(period, joined, columns, since, until, events=table == "events")
            for batch in source.query(query).batches:
                out.writelines(row[0] for row in batch)
                rows += len(batch)
    return rows


def _query(
    period: Period, joined: str, columns: dict[str, str], since: int, until: int, *, events: bool
) -> str:
    """Return the query for a window's CSV lines, which DuckDB builds many times faster than Python."""
    session = period.name if period.session_id is not None else ""
    parts = [
        literal(f"{period.recording_id}"),
        _quoted(literal(session)),
        "strftime(s.ts, '%Y-%m-%dT%H:%M:%S.%fZ')",
        _quoted("n.node"),
        *(_quoted(sql) if name in _TEXTS else f"{sql}::VARCHAR" for name, sql in columns.items()),
    ]
    line = " || ',' || ".join(f"coalesce({part}, '')" for part in parts)
    recording = "s.recording_id" if events else "n.recording_id"
    order = "s.ts" if events else "s.ts, n.node_id" + (", g.gpu_index" if "gpu_index" in columns else "")
    return (
        f"SELECT {line} || chr(10) FROM {joined} WHERE {recording} = {period.recording_id} "  # noqa: S608 (own)
        f"AND s.ts >= make_timestamp({since}) AND s.ts < make_timestamp({until}) ORDER BY {order}"
    )


def _quoted(sql: str) -> str:
    """Return SQL that quotes a text for CSV if needed."""
    escaped = f"""'"' || replace({sql}, '"', '""') || '"'"""
    return f"""CASE WHEN regexp_matches({sql}, '[",\\n\\r]') THEN {escaped} ELSE {sql} END"""
