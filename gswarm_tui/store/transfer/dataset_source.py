"""Read-only access to one run of a Parquet dataset, with the tables of a recording file."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from urllib.parse import unquote

import duckdb

from gswarm_tui.store.duckdb_internals import NO_EXTENSIONS, connect_in_memory
from gswarm_tui.store.errors import StoreError, explain
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.sql import schema
from gswarm_tui.store.sql.schema import literal
from gswarm_tui.store.transfer.importing import checked, columns_of, parquet_rows


class DatasetSource(FileSource):
    """A QuerySource on a run; ``path`` is its folder ``recordings/run=…``. Queries reach the dataset only."""

    def __init__(self, path: Path, tables: Collection[str] = ()) -> None:
        """Open the run for the program's own queries. Raises StoreError."""
        super().__init__(path, for_people=False, tables=tables)

    def _connect(self) -> duckdb.DuckDBPyConnection:
        dataset, run = self.path.absolute().parents[1], self.path.name
        # Exports lack the columns that name a run; its folder has the name.
        named = json.dumps({"imported_run": unquote(run.removeprefix("run="))})
        connection = connect_in_memory({**NO_EXTENSIONS, **self.limits})
        try:
            connection.execute("SET allowed_directories = ?", [[str(dataset)]])
            connection.execute("SET enable_external_access = false")
            for table in schema.TABLES:
                if self.tables and table.name not in self.tables:
                    continue
                files = sorted(
                    file for file in (dataset / table.name / run).rglob("*.parquet") if file.is_file()
                )
                if not files and table is schema.RECORDINGS:
                    raise StoreError(f"{self.path} has no Parquet file")
                there = columns_of(connection, parquet_rows(files)) if files else set()
                values = {c.name: checked(c) if c.name in there else f"NULL::{c.type}" for c in table.columns}
                if table is schema.RECORDINGS:
                    values["options"] = literal(named)
                shown = ", ".join(f"{value} AS {name}" for name, value in values.items())
                rows = f"FROM {parquet_rows(files)} s" if files else "WHERE false"
                connection.execute(f"CREATE VIEW {table.name} AS SELECT {shown} {rows}")
            connection.execute("SET lock_configuration = true")
        except duckdb.Error as error:
            connection.close()
            raise StoreError(explain(error, self.path)) from error
        except StoreError:
            connection.close()
            raise
        return connection
