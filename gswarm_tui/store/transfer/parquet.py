"""Recordings as a Parquet dataset: a folder for each table, in it one for each run, in samples also by node.

::

    gpu_samples/run=20270115-080000-1a2b3c4d/node=gpu01/part-0.parquet     also gpu_minutes, host_samples,
                                                                           process_samples, port_samples,
                                                                           mount_samples
    recordings/run=20270115-080000-1a2b3c4d/part-0.parquet     also nodes, gpus, sessions, events,
                                                               findings, links, gpu_links; if there are
                                                               any, profiles, profile_names and their tables
                                                               of events

The folders are named as in Hive; DuckDB, pandas, polars, Dask and Spark read these names as columns. Columns
have the names of the database, and types that mean the same to all readers: times have the zone UTC, and no
integer is unsigned, which wraps around in pandas, or wider than 64 bits, which Spark reads as a decimal. The
metadata of each file has the meaning of each column. GPU and process samples have ``gpu_index`` and
``allocated``, too. Columns that only serve to resume a recording are left out.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import numpy as np

from gswarm_tui.store.duckdb_internals import NO_EXTENSIONS, Settings, connect_in_memory
from gswarm_tui.store.errors import RunExistsError, StoreError, explain
from gswarm_tui.store.figures.definitions import MINE, reaches_into
from gswarm_tui.store.querying.opening import open_for_reading
from gswarm_tui.store.querying.results import QueryError, QuerySource, Result
from gswarm_tui.store.querying.running_query import explain_query
from gswarm_tui.store.sql import schema
from gswarm_tui.store.sql.schema import ColumnSchema, TableSchema, literal
from gswarm_tui.store.sql.view_columns import MEANINGS
from gswarm_tui.store.sql.views import meanings

SAMPLES = (schema.GPU_SAMPLES, schema.HOST_SAMPLES, schema.PROCESS_SAMPLES, *schema.LISTING_TABLES.values())
SMALL = (
    schema.RECORDINGS, schema.NODES, schema.GPUS, schema.SESSIONS, schema.EVENTS, schema.FINDINGS,
    schema.LINKS, schema.GPU_LINKS,
)  # fmt: skip
_MINUTE = "INTERVAL 1 MINUTE"
OF_PROFILES = (schema.PROFILES, schema.PROFILE_NAMES, *schema.PROFILE_EVENTS)
"""In this order: what others refer to comes first."""
PRIVATE = frozenset({"uid", "options"})
"""Columns of ``recordings`` that only serve to resume it on the machine where it was made."""

_ADDED = {
    "gpu_index": "g.gpu_index",
    "allocated": "g.allocated",
    "mem_used_pct": "round(100 * s.mem_used_mib / nullif(g.memory_total_mib, 0), 1) AS mem_used_pct",
}
"""Columns of GPU samples that aren't in their table; those of processes, and minutes, have the first two."""

RUN = """coalesce(
  TRY_CAST(options AS JSON) ->> 'imported_run',
  strftime(started_at, '%Y%m%d-%H%M%S-')
    || left(sha256(coalesce(nullif(uid, ''), concat_ws(' ', host, recording_id))), 8)
)"""
"""The name of a run as SQL over ``recordings``: the same in its exports and their imports, sorted by time.

It has a hash of the identifier that agents know, not the identifier itself."""

SETTINGS: Settings = {**NO_EXTENSIONS, "threads": 2, "memory_limit": "512MB"}


@dataclass(frozen=True)
class Slice:
    """The exported part of a recording: all of it, or a session from ``since`` to ``until``.

    Times are UTC without a zone; ``since`` is not part of it, but a sample after ``until`` is if the time
    that it covers begins before. Samples of GPUs that Slurm gave to others are part of it with ``all_gpus``.
    """

    recording_id: int
    session_id: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    all_gpus: bool = False

    def within(self, column: str) -> str:
        """Return the SQL condition that a time is in the slice."""
        if self.since is None or self.until is None:
            return "true"
        return f"{column} > TIMESTAMP '{self.since}' AND {column} <= TIMESTAMP '{self.until}'"

    def samples(self, table: TableSchema) -> str:
        """Return the SQL condition that a sample ``s`` is in the slice."""
        if table is schema.GPU_MINUTES:
            return f"{self.within('s.minute')} AND {self.within(f's.minute + {_MINUTE}')}"
        covers = [f"s.{c.name}" for c in table.columns if c.name in ("interval_ms", "energy_used_ms")]
        if not covers:
            frames = f"SELECT s.ts, s.node_id FROM host_samples s WHERE {self.samples(schema.HOST_SAMPLES)}"  # noqa: S608
            return f"({self.within('s.ts')} OR (s.ts, node_id) IN ({frames}))"
        if self.since is None or self.until is None:
            return "true"
        reaches = reaches_into(f"epoch_us(TIMESTAMP '{self.until}')", f"greatest({', '.join(covers)})")
        return f"s.ts > TIMESTAMP '{self.since}' AND {reaches}"

    def profiles(self) -> str:
        """Return the SQL condition that a profile is in the slice, wholly or in part."""
        own = f"recording_id = {self.recording_id}"
        if self.since is None or self.until is None:
            return own
        return f"{own} AND started_at < TIMESTAMP '{self.until}' AND ended_at > TIMESTAMP '{self.since}'"


def is_dataset(folder: Path) -> bool:
    """Return whether a folder holds an export and nothing else."""
    return (folder / schema.RECORDINGS.name).exists() and has_only_exports(folder)


def has_only_exports(folder: Path) -> bool:
    """Return whether a folder holds nothing but exports, of which the last may be incomplete."""
    names = {path.name for path in folder.iterdir()}
    own = {table.name for table in (*SAMPLES, *SMALL, schema.GPU_MINUTES, *OF_PROFILES)}
    files = (path for path in folder.rglob("*") if not path.is_dir())
    return names <= own and all(file.suffix == ".parquet" for file in files)


def append_runs(new: Path, dataset: Path) -> None:
    """Move the runs of a new dataset into another one, or none of them. Raises OSError.

    The table ``recordings`` comes last: what an interrupted append has left isn't in it, and is replaced.
    """
    moved = []
    try:
        for table in sorted(new.iterdir(), key=lambda path: path.name == schema.RECORDINGS.name):
            for run in table.iterdir():
                target = dataset / table.name / run.name
                if target.exists():
                    shutil.rmtree(target)
                target.parent.mkdir(parents=True, exist_ok=True)
                moved.append(target)
                run.rename(target)
    except BaseException:
        for target in moved:
            shutil.rmtree(target, ignore_errors=True)
        raise


def of_profiles(table: TableSchema, own: Sequence[int]) -> str:
    """Return the SQL condition that a row of one of ``OF_PROFILES`` belongs to the profiles ``own``."""
    ids = f"profile_id IN ({', '.join(map(str, own))})"
    if table is not schema.PROFILE_NAMES:
        return ids
    used = (
        f"SELECT {column.name} FROM {events.name} WHERE {ids}"  # noqa: S608 (own names)
        for events in schema.PROFILE_EVENTS
        for column in events.columns
        if column.name.endswith("name_id")
    )
    return f"name_id IN ({' UNION '.join(used)})"


def write_dataset(
    source: QuerySource,
    folder: Path,
    slices: Sequence[Slice],
    report: Callable[[float], None] = lambda _share: None,
    dataset: Path | None = None,
) -> tuple[int, int]:
    """Write slices of a recording file into an empty folder; return the numbers of GPU samples and profiles.

    A finished file is closed and copied by DuckDB; a running recording is queried, without sums by minute,
    which may change meanwhile. ``report`` is called with the finished share, from 0 to 1. Raises StoreError,
    also if ``dataset`` has one of the runs.
    """
    if source.running:
        return _Writing(
            lambda query: source.query(query).rows(),
            lambda query, file, known: write_parquet(source.query(query), file, known),
            folder,
            slices,
            SAMPLES,
        ).write(report, dataset)
    source.close()
    settings = SETTINGS | {"temp_directory": str(folder.parent / "spilt")}
    connection = open_for_reading(source.path, settings, folder, for_people=False)
    try:
        return _Writing(
            lambda query: connection.execute(query).fetchall(),
            partial(_copy, connection),
            folder,
            slices,
            (*SAMPLES, schema.GPU_MINUTES),
        ).write(report, dataset)
    except duckdb.Error as error:
        raise StoreError(explain(error, Path("the export"))) from error
    finally:
        connection.close()


@dataclass(frozen=True)
class _Writing:
    """Writes one dataset: ``query`` returns rows, ``copy`` writes a result, with meanings, to a file."""

    query: Callable[[str], list[tuple[Any, ...]]]
    copy: Callable[[str, Path, Mapping[str, str]], None]
    folder: Path
    slices: Sequence[Slice]
    tables: Sequence[TableSchema]
    runs: dict[int, str] = field(default_factory=dict)

    def write(self, report: Callable[[float], None], dataset: Path | None) -> tuple[int, int]:
        self.runs.update(self.query(f"SELECT recording_id, {RUN} FROM recordings"))  # noqa: S608 (own names)
        for run in (self.runs[part.recording_id] for part in self.slices):
            if (
                dataset is not None
                and (dataset / schema.RECORDINGS.name / f"run={quote(run, safe='')}").exists()
            ):
                raise RunExistsError(f"{dataset} has the run {run} already; nothing was added")
        names = "SELECT node FROM nodes WHERE recording_id = {} GROUP BY node ORDER BY min(node_id)"
        nodes = [
            (part, node) for part in self.slices for (node,) in self.query(names.format(part.recording_id))
        ]
        written = 0
        for done, (part, node) in enumerate(nodes):
            report(done / len(nodes))
            for table in self.tables:
                count = self._samples(table, part, node)
                written += count if table is schema.GPU_SAMPLES else 0
        # Last: a running recording may add nodes and GPUs while their samples are copied.
        for part in self.slices:
            for small in SMALL:
                self.copy(self._small(small, part), self._file(small, part), _meanings(small))
        return written, sum(self._profiles(part) for part in self.slices)

    def _profiles(self, part: Slice) -> int:
        """Write the profiles of a slice and return their number."""
        # A running recording may import another profile meanwhile, so the ids are read once.
        query = f"SELECT profile_id FROM profiles WHERE {part.profiles()} ORDER BY profile_id"  # noqa: S608
        own = [row[0] for row in self.query(query)]
        for table in OF_PROFILES if own else ():
            columns = _portable_columns(table.columns)
            self._rows(table, f"SELECT {columns} FROM {table.name} WHERE {of_profiles(table, own)}", part)  # noqa: S608
        return len(own)

    def _rows(self, table: TableSchema, query: str, part: Slice, node: str = "") -> int:
        """Write the rows of a query, if there are any, and return their number."""
        count = int(self.query(f"SELECT count(*) FROM ({query})")[0][0])  # noqa: S608 (own names and numbers)
        if count:
            self.copy(query, self._file(table, part, node), _meanings(table))
        return count

    def _file(self, table: TableSchema, part: Slice, node: str = "") -> Path:
        folder = self.folder / table.name / f"run={quote(self.runs[part.recording_id], safe='')}"
        if node:
            folder /= f"node={quote(node, safe='')}"
        folder.mkdir(parents=True)
        return folder / "part-0.parquet"

    def _small(self, table: TableSchema, part: Slice) -> str:
        own = f"recording_id = {part.recording_id}"
        nodes = f"SELECT node_id FROM nodes WHERE {own}"  # noqa: S608 (own numbers)
        columns = _portable_columns(column for column in table.columns if column.name not in PRIVATE)
        where = (
            own if "recording_id" in {column.name for column in table.columns} else f"node_id IN ({nodes})"
        )
        if table is schema.SESSIONS and part.session_id is not None:
            where += f" AND session_id = {part.session_id}"
        if table is schema.EVENTS:
            where += f" AND {part.within('ts')}"
        if table is schema.FINDINGS and part.since is not None:
            where += f" AND since <= TIMESTAMP '{part.until}'"
            where += f" AND coalesce(until > TIMESTAMP '{part.since}', true)"
        return f"SELECT {columns} FROM {table.name} WHERE {where}"  # noqa: S608 (own names)

    def _samples(self, table: TableSchema, part: Slice, node: str) -> int:
        nodes = (
            f"SELECT node_id FROM nodes WHERE recording_id = {part.recording_id} AND node = {literal(node)}"  # noqa: S608
        )
        columns = [f"{_portable(f's.{c.name}', c.type)} AS {c.name}" for c in table.columns]
        of_gpus = table in (schema.GPU_SAMPLES, schema.PROCESS_SAMPLES, schema.GPU_MINUTES)
        columns += list(_ADDED.values())[: (2 + (table is schema.GPU_SAMPLES)) * of_gpus]
        gpus = "JOIN gpus g USING (gpu_id) " if of_gpus else ""
        own = f"g.{MINE} AND " if of_gpus and not part.all_gpus else ""
        query = (
            f"SELECT {', '.join(columns)} FROM {table.name} s {gpus}"  # noqa: S608 (own names)
            f"WHERE {own}node_id IN ({nodes}) AND {part.samples(table)}"
        )
        return self._rows(table, query, part, node)


def _meanings(table: TableSchema) -> dict[str, str]:
    added = {name: MEANINGS[name] for name in _ADDED}
    return added | {column.name: column.meaning for column in table.columns}


def write_parquet(result: Result, path: Path, known: Mapping[str, str] | None = None) -> None:
    """Write a result to a Parquet file, with types that every reader knows. Raises StoreError.

    Columns have the meanings ``known``, or those of the view or table that has most of them.
    """
    names = [f"c{index}" for index in range(len(result.names))]
    made = ", ".join(f"{name} {kind}" for name, kind in zip(names, result.types, strict=True))
    with tempfile.TemporaryDirectory(prefix=".gswarm-tui-", dir=path.parent) as scratch:
        connection = connect_in_memory(SETTINGS | {"temp_directory": scratch})
        try:
            connection.execute(f"CREATE TABLE result ({made})")
            for rows in result.batches:
                # The None at the end keeps NumPy from making arrays of lists two-dimensional.
                columns = (np.array([*column, None], dtype=object)[:-1] for column in zip(*rows, strict=True))
                connection.register("incoming", dict(zip(names, columns, strict=True)))
                connection.execute("INSERT INTO result FROM incoming")
            quoted = ('"' + title.replace('"', '""') + '"' for title in result.names)
            # DuckDB numbers repeated names.
            named = ", ".join(
                f"{_portable(name, kind)} AS {title}"
                for name, kind, title in zip(names, result.types, quoted, strict=True)
            )
            known = meanings(result.names) if known is None else known
            _copy(connection, f"SELECT {named} FROM result", path, known)  # noqa: S608 (quoted names)
        except duckdb.IOException as error:
            raise StoreError(explain(error, Path("the result"))) from error
        except duckdb.Error as error:
            raise QueryError(f"the result can't be written as Parquet: {explain_query(error)}") from error
        finally:
            connection.close()


_SIGNED = {"UTINYINT": "SMALLINT", "USMALLINT": "INTEGER", "UINTEGER": "BIGINT"}
_LARGE = ("UBIGINT", "HUGEINT", "UHUGEINT")


def _portable(name: str, kind: str) -> str:
    """Return a column of a DuckDB type as SQL with a type that every reader of Parquet knows."""
    if kind == "TIMESTAMP":
        return f"{name} AT TIME ZONE 'UTC'"
    if kind in _SIGNED or kind in _LARGE:
        return f"{name}::{_SIGNED.get(kind, 'BIGINT')}"
    return name


def _portable_columns(columns: Iterable[ColumnSchema]) -> str:
    return ", ".join(f"{_portable(c.name, c.type)} AS {c.name}" for c in columns)


def _copy(connection: duckdb.DuckDBPyConnection, query: str, path: Path, known: Mapping[str, str]) -> None:
    """Write a query's result to a Parquet file with the meanings of known columns as its metadata."""
    names = [row[0] for row in connection.execute(f"DESCRIBE {query}").fetchall()]
    described = ", ".join(f"{literal(name)}: {literal(known[name])}" for name in names if name in known)
    metadata = f", KV_METADATA {{{described}}}" if described else ""
    connection.execute(f"COPY ({query}) TO {literal(str(path))} (FORMAT parquet, COMPRESSION zstd{metadata})")
