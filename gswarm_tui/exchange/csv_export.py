"""Export to a CSV table, with the rows and columns of a view of SQL.

Text is UTF-8, lines end with a line feed, quotes are doubled, unmeasured values are empty. Times are ISO 8601
in UTC with microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from gswarm_tui.analysis.periods import Period
from gswarm_tui.exchange.time_windows import sample_in, sample_span, windows, within
from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.store.sql.schema import literal
from gswarm_tui.store.sql.views import OWN, VIEWS

_VIEWS = {"gpu": "samples", "host": "hosts", "process": "processes", "events": "event_log"}
_ROWS = {table: VIEWS[view].rows for table, view in _VIEWS.items()}
_ROWS["findings"] = "SELECT since AS ts, * EXCLUDE (since) FROM findings"
TABLES = tuple(_ROWS)


def write_csv(
    source: QuerySource,
    spans: Sequence[Period],
    table: str,
    out: TextIO,
    report: Callable[[float], None],
    *,
    safe: bool = False,
    all_gpus: bool = False,
) -> int:
    """Write one of ``TABLES`` and return the number of rows. Raises StoreError, OSError.

    The column ``session`` is empty for a whole recording. With ``safe`` no cell is a spreadsheet's formula.
    Samples of GPUs that Slurm gave to others are left out without ``all_gpus``.
    """
    view = _ROWS[table]
    if all_gpus:
        view = view.replace(OWN, "")
    first = source.query(f"FROM ({view}) LIMIT 0")
    columns = dict(zip(first.names, first.types, strict=True))
    first.close()
    del columns["ts"]
    out.write(",".join(("ts", "session", *columns)) + "\n")
    order = ", ".join(["s.ts", *(name for name in ("node_id", "gpu_index") if name in columns)])
    rows = 0
    for done, period in enumerate(spans):

        def report_part(share: float, done: int = done) -> None:
            report((done + share) / len(spans))

        count = "SELECT count(*) FROM gpus JOIN nodes USING (node_id) WHERE recording_id = ?"
        ((gpus,),) = source.query(count, period.recording_id).rows()
        interval = "s.interval_ms" if "interval_ms" in columns else "0"
        inside = sample_in(period, interval)
        found = f"FROM ({view}) s WHERE s.recording_id = {period.recording_id} AND {inside}"
        span, line = sample_span(period), _line(period, columns, safe=safe)
        for window in windows(source, found, span, interval=1_000_000, devices=gpus, report=report_part):
            query = f"SELECT {line} {found} AND {within(*window)} ORDER BY {order}"
            for batch in source.query(query).batches:
                out.writelines(row[0] for row in batch)
                rows += len(batch)
    return rows


def _line(period: Period, columns: Mapping[str, str], *, safe: bool) -> str:
    """Return a CSV line as SQL: DuckDB builds the lines many times faster than Python."""

    def quoted(sql: str) -> str:
        """Return SQL that quotes a text for CSV if needed."""
        if safe:
            sql = f"(CASE WHEN regexp_matches({sql}, '^\\s*[=+@-]') THEN chr(39) || {sql} ELSE {sql} END)"
        escaped = f"""'"' || replace({sql}, '"', '""') || '"'"""
        return f"""CASE WHEN regexp_matches({sql}, '[",\\n\\r]') THEN {escaped} ELSE {sql} END"""

    parts = [
        "strftime(s.ts, '%Y-%m-%dT%H:%M:%S.%fZ')",
        quoted(literal(period.name if period.session_id is not None else "")),
        *(
            quoted(f's."{name}"') if kind == "VARCHAR" else f's."{name}"::VARCHAR'
            for name, kind in columns.items()
        ),
    ]
    return " || ',' || ".join(f"coalesce({part}, '')" for part in parts) + " || chr(10)"
