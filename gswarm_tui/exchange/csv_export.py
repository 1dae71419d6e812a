"""Export to a CSV table, with a row for each time and GPU, host or process, or for each event of profiles.

Text is UTF-8, lines end with a line feed, quotes are doubled, unmeasured values are empty. Times are ISO 8601
in UTC with microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TextIO

from gswarm_agent.metrics import GPU_COLUMNS, HOST_COLUMNS, PROCESS_COLUMNS
from gswarm_tui.analysis.periods import Period
from gswarm_tui.exchange.time_windows import profile_span, sample_in, sample_span, windows, within
from gswarm_tui.store.figures.definitions import MINE
from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.store.sql import profile_views, trace_views
from gswarm_tui.store.sql.schema import (
    PROFILE_API_EVENTS,
    PROFILE_KERNEL_EVENTS,
    PROFILE_MEMORY_EVENTS,
    PROFILE_METRIC_VALUES,
    PROFILE_RANGE_EVENTS,
    TRACE_KERNEL_EVENTS,
    TRACE_OP_EVENTS,
    TableSchema,
    literal,
)

_NODES = "JOIN nodes n USING (node_id)"
_GPUS = f"JOIN gpus g USING (gpu_id) {_NODES}"
_GPU = {"gpu_index": "g.gpu_index"}
_ALLOCATED = {"allocated": "g.allocated"}
_GPU_NAMES = {"uuid": "g.uuid", "gpu_name": "g.name"}
_MEMORY = {"mem_used_pct": "round(100 * s.mem_used_mib / nullif(g.memory_total_mib, 0), 1)"}


def _own(names: tuple[str, ...]) -> dict[str, str]:
    return {name: f"s.{name}" for name in names}


def _profile(view: str, table: TableSchema, *added: str) -> tuple[str, dict[str, str]]:
    """Return the rows of a view of profiles: names and ``added``, then the columns of its table."""
    of_table = (column.name for column in table.columns if not column.name.endswith("name_id"))
    return f"({view.strip()}) s", _own(("profile", "rank", *added, *of_table))


_METRICS = (
    f"SELECT p.started_at AS ts, m.* FROM ({profile_views.METRICS}) m JOIN profiles p USING (profile_id)"  # noqa: S608
)
_PROFILES = {
    "profile_api": _profile(profile_views.API, PROFILE_API_EVENTS, "name", "layer"),
    "profile_kernels": _profile(
        profile_views.KERNELS, PROFILE_KERNEL_EVENTS, "gpu_index", "name", "short_name"
    ),
    "profile_memory": _profile(profile_views.MEMORY, PROFILE_MEMORY_EVENTS, "gpu_index", "name"),
    "profile_ranges": _profile(profile_views.RANGES, PROFILE_RANGE_EVENTS, "name"),
    "profile_metrics": _profile(_METRICS, PROFILE_METRIC_VALUES, "kernel"),
    "trace_ops": _profile(trace_views.OPS, TRACE_OP_EVENTS, "name"),
    "trace_kernels": _profile(trace_views.KERNELS, TRACE_KERNEL_EVENTS, "name"),
}
_TABLES: dict[str, tuple[str, dict[str, str]]] = {
    "gpu": (
        f"gpu_samples s {_GPUS}",
        _GPU
        | _own(("util_pct",))
        | _MEMORY
        | _own(("power_w",))
        | _ALLOCATED
        | _own(("interval_ms", *GPU_COLUMNS))
        | _GPU_NAMES,
    ),
    "host": (f"host_samples s {_NODES}", _own(("interval_ms", "late_ms", "missed", *HOST_COLUMNS))),
    "process": (
        f"process_samples s {_GPUS}",
        _GPU
        | _own(("pid", "rank", "local_rank", "user_name", "command", *PROCESS_COLUMNS))
        | _ALLOCATED
        | _GPU_NAMES,
    ),
    "events": (
        "events s LEFT JOIN nodes n ON n.node_id = s.node_id LEFT JOIN gpus g ON g.gpu_id = s.gpu_id",
        _GPU | _own(("kind", "severity", "message", "detail")),
    ),
    **_PROFILES,
}
TABLES = tuple(_TABLES)
_TEXTS = frozenset(
    {"node", "uuid", "gpu_name", "user_name", "command", "kind", "severity", "message", "detail"}
    | {"profile", "name", "short_name", "kernel", "layer", "style", "metric", "unit", "text"}
    | {"category", "collective", "process_group"}
)
_EVENTS_AT_ONCE = 50_000
"""Supposed number of a profile's events in a second."""


@dataclass(frozen=True)
class CsvTable:
    """One of the ``TABLES`` as CSV. With ``safe`` no cell is a spreadsheet's formula.

    Samples of GPUs that Slurm gave to others are left out without ``all_gpus``.
    """

    name: str
    safe: bool = False
    all_gpus: bool = False

    @property
    def columns(self) -> dict[str, str]:
        """The SQL of the columns that not every table has, by name."""
        return _TABLES[self.name][1]

    @property
    def of_profiles(self) -> bool:
        """Whether the rows are those of profiles, not of samples."""
        return self.name in _PROFILES

    @property
    def order(self) -> str:
        """The SQL order of the rows."""
        if self.of_profiles:
            return "s.ts, s.profile_id"
        gpu = ", g.gpu_index" if "uuid" in self.columns else ""
        return "s.ts" if self.name == "events" else f"s.ts, n.node_id{gpu}"

    def rows(self, period: Period) -> str:
        """Return the SQL of a recording's rows."""
        name = "s" if self.name == "events" or self.of_profiles else "n"
        own = f"AND g.{MINE}" if "allocated" in self.columns and not self.all_gpus else ""
        if not self.of_profiles:
            interval = "s.interval_ms" if "interval_ms" in self.columns else "0"
            own += f" AND {sample_in(period, interval)}"
        return f"FROM {_TABLES[self.name][0]} WHERE {name}.recording_id = {period.recording_id} {own}"

    def line(self, period: Period) -> str:
        """Return a CSV line as SQL: DuckDB builds the lines many times faster than Python."""
        session = period.name if period.session_id is not None else ""
        parts = [
            "strftime(s.ts, '%Y-%m-%dT%H:%M:%S.%fZ')",
            self._quoted(literal(session)),
            self._quoted("s.node" if self.of_profiles else "n.node"),
            *(
                self._quoted(sql) if name in _TEXTS else f"{sql}::VARCHAR"
                for name, sql in self.columns.items()
            ),
            literal(f"{period.recording_id}"),
        ]
        line = " || ',' || ".join(f"coalesce({part}, '')" for part in parts)
        return f"{line} || chr(10)"

    def _quoted(self, sql: str) -> str:
        """Return SQL that quotes a text for CSV if needed."""
        if self.safe:
            sql = f"(CASE WHEN regexp_matches({sql}, '^\\s*[=+@-]') THEN chr(39) || {sql} ELSE {sql} END)"
        escaped = f"""'"' || replace({sql}, '"', '""') || '"'"""
        return f"""CASE WHEN regexp_matches({sql}, '[",\\n\\r]') THEN {escaped} ELSE {sql} END"""


def write_csv(
    source: QuerySource,
    spans: Sequence[Period],
    table: CsvTable,
    out: TextIO,
    report: Callable[[float], None],
) -> int:
    """Write a table and return the number of rows. Raises StoreError, OSError.

    The column ``session`` is empty for a whole recording.
    """
    out.write(",".join(("ts", "session", "node", *table.columns, "recording_id")) + "\n")
    rows = 0
    for done, period in enumerate(spans):

        def report_part(share: float, done: int = done) -> None:
            report((done + share) / len(spans))

        count = "SELECT count(*) FROM gpus JOIN nodes USING (node_id) WHERE recording_id = ?"
        gpus = source.query(count, period.recording_id).rows()[0][0]
        per_second = _EVENTS_AT_ONCE if table.of_profiles else gpus
        line, found = table.line(period), table.rows(period)
        span = profile_span(period) if table.of_profiles else sample_span(period)

        for window in windows(
            source, found, span, interval=1_000_000, devices=per_second, report=report_part
        ):
            query = f"SELECT {line} {found} AND {within(*window)} ORDER BY {table.order}"
            for batch in source.query(query).batches:
                out.writelines(row[0] for row in batch)
                rows += len(batch)
    return rows
