"""Recordings as a Parquet dataset: samples in folders by recording and node, small tables beside them.

::

    gpu_samples/recording=1/node=gpu01/part-0.parquet     and so for host_samples and process_samples
    recordings.parquet  nodes.parquet  gpus.parquet  sessions.parquet  events.parquet  links.parquet

The folders are named in the manner of Hive, which DuckDB, pandas, polars, Dask and Spark read as columns.
Columns have the names and types of the database; times are timestamps with microseconds, in UTC. GPU and
process samples have ``gpu_index`` too. What only serves to go on with a recording stays behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

import duckdb

from gswarm_tui.store.database import StoreError, explain
from gswarm_tui.store.schema import (
    EVENTS,
    GPU_SAMPLES,
    GPUS,
    HOST_SAMPLES,
    LINKS,
    NODES,
    PROCESS_SAMPLES,
    RECORDINGS,
    SESSIONS,
    Table,
    literal,
)

SAMPLES = (GPU_SAMPLES, HOST_SAMPLES, PROCESS_SAMPLES)
SMALL = (RECORDINGS, NODES, GPUS, SESSIONS, EVENTS, LINKS)
PRIVATE = frozenset({"uid", "options"})
"""Columns of ``recordings`` that are for the machine it was made on: how its nodes are reached."""

_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "threads": 2,
    "memory_limit": "512MB",
}


@dataclass(frozen=True)
class Slice:
    """What is exported of a recording: all of it, or a session with the samples from ``since`` to ``until``.

    Times are UTC without a zone; ``until`` is not part of it.
    """

    recording_id: int
    session_id: int | None = None
    since: datetime | None = None
    until: datetime | None = None

    def within(self, column: str) -> str:
        """The SQL condition that a time lies in it."""
        if self.since is None or self.until is None:
            return "true"
        return f"{column} >= TIMESTAMP '{self.since}' AND {column} < TIMESTAMP '{self.until}'"


def is_dataset(folder: Path) -> bool:
    """Whether a folder has an export and nothing else in it."""
    names = {path.name for path in folder.iterdir()}
    own = {table.name for table in SAMPLES} | {file_name(table) for table in SMALL}
    files = (path for path in folder.rglob("*") if not path.is_dir())
    return file_name(RECORDINGS) in names <= own and all(file.suffix == ".parquet" for file in files)


def file_name(table: Table) -> str:
    """The file of a small table in a dataset."""
    return f"{table.name}.parquet"


def write_dataset(
    path: Path, folder: Path, slices: Sequence[Slice], tell: Callable[[float], None] = lambda _share: None
) -> int:
    """Writes a finished recording file's slices into an empty folder; how many GPU samples there are.

    ``tell`` hears which share is done, from 0 to 1. Raises StoreError.
    """
    connection = duckdb.connect(":memory:", config=_SETTINGS | {"temp_directory": str(folder / ".spilt")})
    try:
        connection.execute(f"ATTACH {literal(str(path))} AS rec (READ_ONLY)")
    except duckdb.Error as error:
        connection.close()
        raise StoreError(explain(error, path)) from error
    try:
        connection.execute("USE rec")
        return _Writing(connection, folder, slices).write(tell)
    except duckdb.Error as error:
        raise StoreError(f"{folder.parent} can't be written to: {_reason(error)}") from error
    finally:
        connection.close()


def _reason(error: duckdb.Error) -> str:
    return str(error).strip().splitlines()[0]


class _Writing:
    """The statements that write one dataset."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, folder: Path, slices: Sequence[Slice]) -> None:
        self._connection = connection
        self._folder = folder
        self._slices = slices

    def write(self, tell: Callable[[float], None]) -> int:
        for table in SMALL:
            self._copy(self._small(table), self._folder / file_name(table))
        nodes = [(part, node) for part in self._slices for node in self._nodes(part)]
        written = 0
        for done, (part, node) in enumerate(nodes):
            tell(done / len(nodes))
            for table in SAMPLES:
                count = self._samples(table, part, node)
                written += count if table is GPU_SAMPLES else 0
        return written

    def _copy(self, query: str, file: Path) -> int:
        options = "(FORMAT parquet, COMPRESSION zstd)"
        done = self._connection.execute(f"COPY ({query}) TO {literal(str(file))} {options}").fetchall()
        return int(done[0][0])

    def _nodes(self, part: Slice) -> Iterator[str]:
        query = "SELECT node FROM nodes WHERE recording_id = ? GROUP BY node ORDER BY min(node_id)"
        yield from (row[0] for row in self._connection.execute(query, [part.recording_id]).fetchall())

    def _small(self, table: Table) -> str:
        ids = ", ".join(str(part.recording_id) for part in self._slices)
        own = f"recording_id IN ({ids})"
        nodes = f"SELECT node_id FROM nodes WHERE {own}"  # noqa: S608 (own numbers)
        names = ", ".join(column.name for column in table.columns if column.name not in PRIVATE)
        where = (
            own if "recording_id" in {column.name for column in table.columns} else f"node_id IN ({nodes})"
        )
        if table is SESSIONS:
            chosen = [str(part.session_id) for part in self._slices if part.session_id is not None]
            where += f" AND session_id IN ({', '.join(chosen)})" if chosen else ""
        if table is EVENTS:
            parts = (f"recording_id = {p.recording_id} AND {p.within('ts')}" for p in self._slices)
            where = " OR ".join(parts)
        return f"SELECT {names} FROM {table.name} WHERE {where}"  # noqa: S608 (own names)

    def _samples(self, table: Table, part: Slice, node: str) -> int:
        nodes = (
            f"SELECT node_id FROM nodes WHERE recording_id = {part.recording_id} AND node = {literal(node)}"  # noqa: S608
        )
        if table is HOST_SAMPLES:
            query = f"SELECT s.* FROM host_samples s WHERE node_id IN ({nodes})"  # noqa: S608 (own names)
        else:
            query = (
                f"SELECT s.*, g.gpu_index FROM {table.name} s JOIN gpus g USING (gpu_id) "  # noqa: S608
                f"WHERE g.node_id IN ({nodes})"
            )
        query += f" AND {part.within('s.ts')}"
        if not self._connection.execute(f"SELECT 1 FROM ({query}) LIMIT 1").fetchall():  # noqa: S608 (as above)
            return 0
        folder = self._folder / table.name / f"recording={part.recording_id}" / f"node={quote(node, safe='')}"
        folder.mkdir(parents=True)
        return self._copy(query, folder / "part-0.parquet")
