"""One read-only query on a cursor: which statements may run, the result in batches, cancelling it.

DuckDB is the guard: transactions are read-only, and connections have no access to files and networks. The
statement's kind is checked before it runs, so that a query can't end the transaction.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb

from gswarm_tui.store.duckdb_internals import (
    NO_EXTENSIONS,
    connect_in_memory,
    lacks_spill_space,
    query_problem,
)
from gswarm_tui.store.errors import StoreError, explain
from gswarm_tui.store.querying.results import QueryError, Result

if TYPE_CHECKING:
    import numpy.typing as npt

T = TypeVar("T")

BATCH_ROWS = 256
"""DuckDB holds the GIL while it makes Python's values of this many rows, and the recorder waits."""

_CANCELLED = "the query was cancelled"
_WRITE_FILE = "`gswarm-tui sql … -o FILE` writes a result to a file, `gswarm-tui export` a session"
_OTHER_WAYS = {
    duckdb.StatementType.COPY: f"queries can't write files; {_WRITE_FILE}",
    duckdb.StatementType.EXPORT: f"queries can't write files; {_WRITE_FILE}",
    duckdb.StatementType.ATTACH: "a query attaches no files; name recordings with --db, which takes several",
}
_JOIN_ELSEWHERE = f"{_WRITE_FILE}, which DuckDB can join with others"
_ALLOWED = "only SELECT, FROM, WITH, VALUES, PIVOT, DESCRIBE, SUMMARIZE and SHOW can be used here"


def split(sql: str) -> list[str]:
    """Split a text into its statements. Raises QueryError."""
    if not re.search(r"[;'\"$]|--|/\*", sql):  # a connection of its own takes 12 ms
        return [sql.strip()] if sql.strip() else []
    try:
        with contextlib.closing(connect_in_memory(NO_EXTENSIONS)) as connection:
            return [statement.query.strip() for statement in connection.extract_statements(sql)]
    except duckdb.Error as error:
        raise QueryError(explain_query(error)) from error


class RunningQuery:
    """A query with a cursor of its own, which closes with it.

    One thread fetches rows; any thread may ``stop`` the query, which then raises QueryError with the reason.
    """

    def __init__(
        self,
        cursor: duckdb.DuckDBPyConnection,
        path: Path,
        ended: Callable[[RunningQuery], None] = lambda _query: None,
        *,
        for_people: bool = True,
    ) -> None:
        self._cursor = cursor
        self._for_people = for_people
        self._path = path
        self._ended = ended
        self._busy = threading.Lock()
        self._stopped = ""
        self.closed = False

    def run(self, sql: str, values: Sequence[object]) -> Result:
        """Start the statement; return its result when it has rows. Raises QueryError, StoreError."""
        with self._checked():
            self._call(lambda: self._execute(sql, values))
            described = self._cursor.description or []
        names, types = [str(column[0]) for column in described], [str(column[1]) for column in described]
        return Result(names, types, self._batches(), self.close)

    def arrays(self, sql: str, values: Sequence[object]) -> dict[str, npt.NDArray[Any]]:
        """Return the whole result by column, masked where NULL. Raises QueryError, StoreError."""
        with self._checked():
            self._call(lambda: self._execute(sql, values))
            arrays = dict(self._call(self._cursor.fetchnumpy))
        self.close()
        return arrays

    def _execute(self, sql: str, values: Sequence[object]) -> None:
        if self._for_people:
            _check_read_only(self._cursor, sql)
        self._cursor.execute("BEGIN TRANSACTION READ ONLY")
        self._cursor.execute(sql, list(values))

    def _call(self, function: Callable[[], T]) -> T:
        """Use the cursor in another thread than the main one: there, DuckDB would miss one Ctrl-C in four.

        It looks for signals between its own steps, and not while it waits for a step in its other threads.
        """
        if threading.current_thread() is not threading.main_thread():
            return function()
        with ThreadPoolExecutor(1) as pool:
            called = pool.submit(function)
            try:
                return called.result()
            except BaseException:
                while not called.done():  # DuckDB ignores an interrupt between two steps of a query
                    self._cursor.interrupt()
                    wait((called,), 0.05)
                raise

    def _batches(self) -> Iterator[list[tuple[Any, ...]]]:
        while True:
            with self._checked():
                rows = [] if self.closed else self._call(lambda: self._cursor.fetchmany(BATCH_ROWS))
            if not rows:
                break
            yield rows
        self.close()

    @contextlib.contextmanager
    def _checked(self) -> Iterator[None]:
        """Use the cursor; turn errors into sentences and close it."""
        try:
            with self._busy:
                if self._stopped:
                    raise QueryError(self._stopped)
                yield
        except BaseException as error:
            self.close()
            if isinstance(error, StoreError) or not isinstance(error, Exception):
                raise
            if self._stopped:
                raise QueryError(self._stopped) from None
            if isinstance(error, (duckdb.IOException, duckdb.FatalException, duckdb.InternalException)):
                raise StoreError(explain(error, self._path)) from error
            raise QueryError(explain_query(error)) from error

    def stop(self, reason: str, wait_s: float = 5.0) -> None:
        """Interrupt the query, from any thread, and close the cursor as soon as no thread uses it."""
        self._stopped = self._stopped or reason
        attempts = max(1, round(wait_s / 0.05))
        for _ in range(attempts):  # DuckDB ignores an interrupt between two steps of a query
            if self.closed:
                return
            with contextlib.suppress(duckdb.Error):
                self._cursor.interrupt()
            if self._busy.acquire(timeout=0.05):
                self._busy.release()
                self.close()
                return

    def close(self) -> None:
        """Close the cursor, once."""
        with self._busy:
            if self.closed:
                return
            self.closed = True
            with contextlib.suppress(duckdb.Error):
                self._cursor.close()
        self._ended(self)


class LocalSource:
    """A QuerySource in this process: each query has a cursor of its own. Usable from any thread.

    ``new_query`` returns a query on a new cursor; it raises QueryError or StoreError.
    ``query`` waits for the first rows, so don't call it from the event loop.
    """

    def __init__(self, path: Path, new_query: Callable[[], RunningQuery], *, running: bool = False) -> None:
        self.path = path
        self.running = running
        self._new_query = new_query
        self._lock = threading.Lock()
        self._queries: list[RunningQuery] = []
        self._closed = False

    def query(self, sql: str, *values: object) -> Result:
        """Return the result of one statement that reads. Raises QueryError, StoreError."""
        return self._start().run(sql, values)

    def arrays(self, sql: str, *values: object) -> dict[str, npt.NDArray[Any]]:
        """Return the whole result by column, masked where NULL. Raises QueryError, StoreError."""
        return self._start().arrays(sql, values)

    def _start(self) -> RunningQuery:
        query = self._new_query()
        with self._lock:
            self._queries = [one for one in self._queries if not one.closed] + [query]
            if not self._closed:
                return query
        query.close()
        raise QueryError(_CANCELLED)

    def interrupt(self) -> None:
        """Cancel the queries that run here: they raise QueryError."""
        with self._lock:
            queries, self._queries = self._queries, []
        for query in queries:
            query.stop(_CANCELLED)

    def close(self) -> None:
        """Cancel the queries that run here and refuse new ones."""
        self._closed = True
        self.interrupt()


def explain_query(error: Exception) -> str:
    """Return the error of a query as one line; DuckDB's has a hint and the query's line."""
    if isinstance(error, duckdb.OutOfMemoryException) and lacks_spill_space(error):
        return "the query needs more space for temporary files than is free; set TMPDIR to a larger disk"
    if isinstance(error, (duckdb.OutOfMemoryException, MemoryError)):
        return "the query needs more memory than it may use; aggregate more, or query fewer rows at a time"
    if not isinstance(error, duckdb.Error):  # DuckDB makes Python's values, which have ranges of their own
        return f"a value of the result can't be read: {error}; cast it to VARCHAR"
    problem, quoted = query_problem(error)
    if isinstance(error, duckdb.PermissionException) and quoted:
        return f"queries can only read the recording, not {quoted}; {_JOIN_ELSEWHERE}"
    return problem


def _check_read_only(cursor: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Allow only queries. Raises QueryError, duckdb.Error."""
    statements = cursor.extract_statements(sql)  # DuckDB's function would open a database with all cores
    if len(statements) != 1:
        raise QueryError("run one statement at a time" if statements else "the query is empty")
    statement, kind = statements[0].query, statements[0].type
    if kind == duckdb.StatementType.MULTI:
        raise QueryError("name the columns that PIVOT makes: PIVOT … ON column IN ('a', 'b') USING …")
    if (other_way := _OTHER_WAYS.get(kind)) is not None:
        raise QueryError(other_way)
    if kind != duckdb.StatementType.SELECT:
        raise QueryError(f"{_ALLOWED}, not {statement.split()[0].upper()}")
