"""Importing recordings into a recording file in one transaction.

Recordings, nodes, GPUs and sessions get new ids, so an import fits beside the file's own content. A file that
an import created is removed if the import fails.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

import duckdb

from gswarm_tui.store.duckdb_internals import connect_in_memory, is_about_parquet
from gswarm_tui.store.errors import FileInUseError, StoreError, explain, open_error
from gswarm_tui.store.querying.opening import remove_with_logs
from gswarm_tui.store.recording.batch import Values, array
from gswarm_tui.store.recording.bulk_insert import insert
from gswarm_tui.store.recording.database import Database
from gswarm_tui.store.recording.minutes import add_all_sums
from gswarm_tui.store.sql import schema
from gswarm_tui.store.sql.schema import (
    ID_TABLES,
    REFERENCES,
    SCHEMA_VERSION,
    ColumnSchema,
    TableSchema,
    literal,
)
from gswarm_tui.store.sql.views import described
from gswarm_tui.store.transfer.parquet import OF_PROFILES, PRIVATE, RUN, SAMPLES, SETTINGS, SMALL

_MAY_LACK = {
    schema.EVENTS: {"node_id", "gpu_id"},
    schema.PROFILES: {"node_id"},
    **{table: {"gpu_id", "name_id", "short_name_id"} for table in schema.PROFILE_EVENTS},
}
"""References that may be NULL, by table."""
# An imported recording can't be resumed here, so it gets an end even if its recorder was killed.
_END_RECORDINGS = """
UPDATE recordings SET ended_at = coalesce(
  (SELECT max(h.ts) + INTERVAL 1 MICROSECOND FROM host_samples h JOIN nodes n USING (node_id)
   WHERE n.recording_id = recordings.recording_id), started_at)
WHERE ended_at IS NULL AND recording_id IN (SELECT number FROM new_recording_id)
"""
_END_SESSIONS = """
UPDATE sessions SET ended_at = greatest(sessions.started_at, r.ended_at), status = 'ended'
FROM recordings r
WHERE r.recording_id = sessions.recording_id AND sessions.ended_at IS NULL
  AND r.recording_id IN (SELECT number FROM new_recording_id)
"""
# Parts of a run, such as its sessions, may be imported one by one, unless they overlap.
_REPEATED = f"""
WITH runs AS (SELECT recording_id, {RUN} AS run FROM recordings), same AS (
  SELECT old.recording_id AS old, new.recording_id AS new FROM runs old JOIN runs new USING (run)
  WHERE old.recording_id < new.recording_id AND new.recording_id >= $1
), times AS (
  SELECT n.recording_id, min(h.ts) AS first, max(h.ts) AS last
  FROM host_samples h JOIN nodes n USING (node_id)
  WHERE n.recording_id IN (SELECT old FROM same UNION SELECT new FROM same)
  GROUP BY n.recording_id
)
SELECT old FROM same
JOIN times o ON o.recording_id = old
JOIN times n ON n.recording_id = new
WHERE o.first <= n.last AND n.first <= o.last
"""  # noqa: S608 (own names)
_REPEATED_PROFILE = """
SELECT new.file, old.profile_id FROM profiles old JOIN profiles new USING (digest)
WHERE old.profile_id < $1 AND new.profile_id >= $1 LIMIT 1
"""
_FIRST, _LAST = "TIMESTAMP '1970-01-01'", "TIMESTAMP '2500-01-01'"


class Importing:
    """An open import into a recording file; created by ``importing``."""

    def __init__(self, path: Path, connection: duckdb.DuckDBPyConnection) -> None:
        self._path = path
        self.connection = connection
        self._renumbered: set[str] = set()
        self._first_recording, self._first_gpu = self.next_free("recording_id"), self.next_free("gpu_id")
        self._first_profile = self.next_free("profile_id")

    def next_free(self, column: str) -> int:
        """Return the next free id of a recording, node, GPU, session, profile or name."""
        query = f"SELECT coalesce(max({column}), 0) + 1 FROM {ID_TABLES[column]}"  # noqa: S608 (own names)
        return int(self.connection.execute(query).fetchall()[0][0])

    @property
    def profiles(self) -> int:
        """The number of profiles that were added."""
        query = f"SELECT count(*) FROM profiles WHERE profile_id >= {self._first_profile}"  # noqa: S608 (own number)
        return int(self.connection.execute(query).fetchall()[0][0])

    def add(self, table: TableSchema, columns: Mapping[str, Values]) -> None:
        """Add rows; times are Unix microseconds, None and NaN are NULL. Raises StoreError."""
        try:
            arrays = {name: array(table, name, values) for name, values in columns.items()}
            insert(self.connection, table, arrays)
        except duckdb.Error as error:
            raise StoreError(explain(error, self._path)) from error

    def add_dataset(self, folder: Path, report: Callable[[float], None]) -> int:
        """Add a dataset of ``write_dataset``; return the number of GPU samples. Raises StoreError."""
        runs = sorted((folder / "recordings").glob("run=*"))
        if not runs:
            raise StoreError(f"{folder} is not an export of gswarm-tui: it has no recordings/run=…")
        samples = 0
        for done, run in enumerate(runs):

            def report_part(share: float, done: int = done) -> None:
                report((done + share) / len(runs))

            samples += self._add_run(folder, run.name, report_part)
        self.refuse_repeated(folder)
        return samples

    def _add_run(self, folder: Path, run: str, report: Callable[[float], None]) -> int:
        """Add a run, whose ids are its own, and return the number of GPU samples."""
        found = {
            table: sorted(file for file in (folder / table.name / run).rglob("*.parquet") if file.is_file())
            for table in (*SMALL, *SAMPLES, schema.GPU_MINUTES, *OF_PROFILES)
        }
        for table in (schema.RECORDINGS, schema.NODES, schema.GPUS):
            if not found[table]:
                raise StoreError(f"{folder} is not an export of gswarm-tui: it has no {table.name}/{run}")
        self._renumbered.clear()
        try:
            for table, files in found.items():
                for column in (column for column, name in ID_TABLES.items() if name == table.name and files):
                    self._renumber(column, table, parquet_rows(files), folder)
                    self._renumbered.add(column)
            samples = 0
            for done, (table, files) in enumerate(found.items()):
                report(done / len(found))
                if files:
                    count = self._add_table(table, files, folder, unquote(run.removeprefix("run=")))
                    samples += count if table is schema.GPU_SAMPLES else 0
            self.connection.execute(_END_RECORDINGS)
            self.connection.execute(_END_SESSIONS)
        except duckdb.Error as error:
            why = f"{folder} can't be imported: {str(error).strip().splitlines()[0]}"
            if isinstance(error, (duckdb.IOException, duckdb.FatalException)) and not is_about_parquet(error):
                why = explain(error, self._path)
            raise StoreError(why) from error
        return samples

    def _renumber(self, column: str, table: TableSchema, reading: str, folder: Path) -> None:
        """Create the table ``new_<column>`` that maps ids of the export to ids of this file."""
        columns = columns_of(self.connection, reading)
        if column not in columns:
            raise StoreError(f"{folder / table.name} has no column {column}")
        if table is schema.RECORDINGS:
            if "schema_version" not in columns:
                raise StoreError(
                    f"{folder} is not an export of gswarm-tui: its recordings have no schema_version"
                )
            newest = self.connection.execute(f"SELECT max(schema_version) FROM {reading}").fetchall()[0][0]  # noqa: S608
            if newest is not None and newest > SCHEMA_VERSION:
                raise StoreError(f"{folder} was made by a newer gswarm-tui; update gswarm-tui to import it")
        first = self.next_free(column)
        self.connection.execute(
            f"CREATE OR REPLACE TEMP TABLE new_{column} AS SELECT CAST({column} AS BIGINT) AS old, "  # noqa: S608
            f"row_number() OVER (ORDER BY {column}) + {first - 1} AS number FROM {reading}"
        )
        query = f"SELECT count(*) - count(DISTINCT old) FROM new_{column}"  # noqa: S608 (own names)
        if self.connection.execute(query).fetchall()[0][0]:
            raise StoreError(f"{folder / table.name} has a {column} that is empty or occurs twice")

    def finish(self) -> None:
        """Sum up imported samples of minutes without sums, and describe columns. Raises duckdb.Error."""
        own = f"gpu_id >= {self._first_gpu}"
        summed = f"SELECT gpu_id, minute FROM gpu_minutes WHERE {own}"  # noqa: S608 (own names and number)
        add_all_sums(self.connection, f"{own} AND (gpu_id, date_trunc('minute', ts)) NOT IN ({summed})")
        for statement in described():
            self.connection.execute(statement)

    def refuse_repeated(self, source: Path) -> None:
        """Raise StoreError if the file had samples of an imported run at the same time."""
        repeated = self.connection.execute(_REPEATED, [self._first_recording]).fetchall()
        if repeated:
            raise StoreError(
                f"{source} is in {self._path} already, as recording {repeated[0][0]}; "
                "import it into another file with --db"
            )
        for file, profile_id in self.connection.execute(_REPEATED_PROFILE, [self._first_profile]).fetchall():
            raise StoreError(
                f"{file} in {source} is in {self._path} already, as profile {profile_id}; "
                "import it into another file with --db"
            )

    def _add_table(self, table: TableSchema, files: Sequence[Path], folder: Path, run: str) -> int:
        reading = parquet_rows(files)
        there = columns_of(self.connection, reading)
        chosen, joins = {}, []
        for column in table.columns:
            if id_name := REFERENCES.get(column.name):
                optional = column.name in _MAY_LACK.get(table, ())
                if column.name not in there:
                    raise StoreError(f"{folder / table.name} has no column {column.name}")
                if id_name not in self._renumbered:
                    raise StoreError(f"{folder} has no {ID_TABLES[id_name]}")
                alias = f"new_{column.name}_"
                chosen[column.name] = f"{alias}.number"
                joins.append(
                    f"{'LEFT ' if optional else ''}JOIN new_{id_name} {alias} "
                    f"ON {alias}.old = CAST(s.{column.name} AS BIGINT)"
                )
            elif column.name in there and column.name not in PRIVATE:
                chosen[column.name] = checked(column)
            elif "NOT NULL" in column.sql:
                raise StoreError(f"{folder / table.name} has no column {column.name}")
        if table is schema.RECORDINGS:
            chosen["options"] = literal(mark(folder.name, run))
        total = self.connection.execute(f"SELECT count(*) FROM {reading}").fetchall()[0][0]  # noqa: S608
        done = self.connection.execute(
            f"INSERT INTO {table.name} ({', '.join(chosen)}) "  # noqa: S608 (own names)
            f"SELECT {', '.join(chosen.values())} FROM {reading} s {' '.join(joins)}"
        ).fetchall()[0][0]
        if done != total:
            raise StoreError(
                f"{folder / table.name}: {total - done} of {total} rows belong to something "
                "that isn't in the export"
            )
        return int(done)


@contextlib.contextmanager
def importing(path: Path) -> Iterator[Importing]:
    """Open an import into a file and commit it at the end of the block. Raises StoreError."""
    new = not path.exists()
    done = False
    connection = connect_in_memory(SETTINGS)
    try:
        Database(path).close()  # makes it, or sees that it is a recording file and of this version
        connection.execute(f"ATTACH {literal(str(path))} AS rec")
        connection.execute("USE rec")
        connection.execute("BEGIN")
        target = Importing(path, connection)
        new = new and target.next_free("recording_id") == 1  # else another import was faster
        yield target
        target.finish()
        connection.execute("COMMIT")
        connection.execute("CHECKPOINT rec")
        done = True
    except FileInUseError:
        new = False  # another import made it at the same time
        raise
    except duckdb.Error as error:
        raised = open_error(error, path)
        new = new and not isinstance(raised, FileInUseError)
        raise raised from error
    finally:
        connection.close()
        if new and not done:
            remove_with_logs(path)


def mark(name: str, run: str) -> str:
    """Return ``recordings.options`` of an imported recording as JSON: the file it came from, and its run."""
    return json.dumps({"imported_from": name, "imported_run": run})


def parquet_rows(files: Sequence[Path]) -> str:
    """Return the rows of Parquet files as SQL."""
    names = ", ".join(literal(str(file)) for file in files)
    return f"read_parquet([{names}], union_by_name = true, hive_partitioning = false)"


def columns_of(connection: duckdb.DuckDBPyConnection, files: str) -> set[str]:
    """Return the columns of files as ``parquet_rows`` names them. Raises duckdb.Error."""
    return {row[0] for row in connection.execute(f"DESCRIBE FROM {files}").fetchall()}


def checked(column: ColumnSchema) -> str:
    """Return a column of an export as SQL with printable text and plausible times and numbers."""
    value = f"CAST(s.{column.name} AS {column.type})"
    if column.type == "VARCHAR":
        return f"regexp_replace({value}, '[\\p{{C}}\\p{{Zl}}\\p{{Zp}}]', ' ', 'g')"
    if column.type == "TIMESTAMP":
        return f"CASE WHEN {value} BETWEEN {_FIRST} AND {_LAST} THEN {value} END"
    if column.type in {"FLOAT", "DOUBLE"}:
        return f"CASE WHEN isfinite({value}) THEN {value} END"
    return value
