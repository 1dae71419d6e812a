"""One read-only query on a cursor: which statements may run, the result in batches, cancelling it.

DuckDB is the first guard: connections or transactions are read-only, without access to files and networks.
The statement's kind and the functions in its FROM clauses are checked before it runs, because DuckDB lets
any query call functions that switch on logging and profiling, checkpoint, or take addresses in memory.
"""

from __future__ import annotations

import contextlib
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb

from gswarm_tui.common.errors import NO_PROCESS, lacks_processes, print_notice
from gswarm_tui.store.duckdb_internals import (
    NO_EXTENSIONS,
    connect_in_memory,
    lacks_spill_space,
    query_problem,
    table_functions,
)
from gswarm_tui.store.errors import StoreError, explain
from gswarm_tui.store.querying.results import QueryError, Result

if TYPE_CHECKING:
    import numpy.typing as npt

T = TypeVar("T")

BATCH_ROWS = 2_048
"""The size of DuckDB's own batches."""

_CANCELLED = "the query was cancelled"
_INTERRUPTS = 60
"""After this many interrupts, in three seconds, a query is in a function that ignores them."""

MAX_CHECKED = 200
_CHECKED: set[str] = set()
"""Statements that passed the check, which takes longer than many queries."""
_TABLE_FUNCTIONS = {
    "duckdb_columns",
    "duckdb_constraints",
    "duckdb_databases",
    "duckdb_functions",
    "duckdb_indexes",
    "duckdb_schemas",
    "duckdb_tables",
    "duckdb_types",
    "duckdb_views",
    "generate_series",
    "histogram",
    "histogram_values",
    "json_each",
    "json_tree",
    "pg_timezone_names",
    "pragma_show",
    "pragma_storage_info",
    "pragma_table_info",
    "pragma_version",
    "range",
    "repeat",
    "repeat_row",
    "summary",
    "unnest",
}
_READS_FILES = re.compile("^(read_|glob$|sniff_csv$)|_scan$")
_EXPLAIN = re.compile(r"EXPLAIN\b\s*(ANALYZE\b\s*)?(\(\s*(ANALYZE|FORMAT)\b[\w\s,]*\)\s*)?", re.IGNORECASE)
"""It matches no comment, so that the rest of the text is exactly what DuckDB explains and runs."""
_WRITE_FILE = "`gswarm-tui sql … -o FILE` writes a result to a file, `gswarm-tui export` a session"
_OTHER_WAYS = {
    duckdb.StatementType.COPY: f"queries can't write files; {_WRITE_FILE}",
    duckdb.StatementType.EXPORT: f"queries can't write files; {_WRITE_FILE}",
    duckdb.StatementType.ATTACH: "a query reads one recording; name another one with --db",
}
_JOIN_ELSEWHERE = f"{_WRITE_FILE}, which DuckDB can join with others"
_TOO_DEEP = "the query is nested too deeply; name parts of it in WITH"
_ALLOWED = "only SELECT, FROM, WITH, VALUES, PIVOT, DESCRIBE, SUMMARIZE, SHOW and EXPLAIN can be used here"


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
            self._interruptible(lambda: self._execute(sql, values))
            described = self._cursor.description or []
        names, types = [str(column[0]) for column in described], [str(column[1]) for column in described]
        return Result(names, types, self._batches(), self.close)

    def arrays(self, sql: str, values: Sequence[object]) -> dict[str, npt.NDArray[Any]]:
        """Return the whole result by column, masked where NULL. Raises QueryError, StoreError."""
        with self._checked():
            self._interruptible(lambda: self._execute(sql, values))
            arrays = dict(self._interruptible(self._cursor.fetchnumpy))
        self.close()
        return arrays

    def _execute(self, sql: str, values: Sequence[object]) -> None:
        if self._for_people:
            _check_read_only(self._cursor, sql)
        self._cursor.execute("BEGIN TRANSACTION READ ONLY")
        self._cursor.execute(sql, list(values))

    def _batches(self) -> Iterator[list[tuple[Any, ...]]]:
        rows = [()]
        while rows:
            with self._checked():
                rows = [] if self.closed else self._interruptible(lambda: self._cursor.fetchmany(BATCH_ROWS))
            if rows:
                yield rows
        self.close()

    def _interruptible(self, call: Callable[[], T]) -> T:
        """Call a function of DuckDB, which ignores signals, so that Ctrl-C interrupts the query.

        KeyboardInterrupt is raised after the query has ended, because its cursor can't be closed before. Of
        a function that DuckDB can't interrupt, a later Ctrl-C ends the process.
        """
        main = threading.current_thread() is threading.main_thread()
        if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return call()
        cancelled = threading.Event()
        signal.signal(signal.SIGINT, lambda *_: cancelled.set())
        try:
            with ThreadPoolExecutor(1, "query") as pool:
                working = pool.submit(call)
                interrupts = 0
                while wait([working], 0.05).not_done:
                    if cancelled.is_set():
                        self._cursor.interrupt()
                        interrupts += 1
                    if interrupts == _INTERRUPTS:
                        signal.signal(signal.SIGINT, signal.SIG_DFL)
                        print_notice("the query can't be cancelled now; Ctrl-C again ends gswarm-tui")
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if cancelled.is_set():
            raise KeyboardInterrupt
        return working.result()

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
    if lacks_processes(error):
        return NO_PROCESS
    if not isinstance(error, duckdb.Error):  # DuckDB makes Python's values, which have ranges of their own
        return f"a value of the result can't be read: {error}; cast it to VARCHAR"
    problem = query_problem(error)
    if problem.writes:
        return "queries can't change a recording"
    if problem.too_deep:
        return _TOO_DEEP
    if isinstance(error, duckdb.PermissionException) and problem.quoted:
        return f"queries can only read the recording, not {problem.quoted}; {_JOIN_ELSEWHERE}"
    return problem.message + (f' (line {problem.line}: "{problem.line_text}")' if problem.line else "")


def _check_read_only(cursor: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Allow only queries whose functions only compute. Raises QueryError, duckdb.Error."""
    if sql in _CHECKED:
        return
    statements = cursor.extract_statements(sql)  # DuckDB's function would open a database with all cores
    if len(statements) != 1:
        raise QueryError("run one statement at a time" if statements else "the query is empty")
    statement, kind = statements[0].query, statements[0].type
    if kind == duckdb.StatementType.EXPLAIN:
        explain = _EXPLAIN.match(statement.lstrip())
        if explain is None:
            raise QueryError("start with EXPLAIN, without a comment before it")
        statement = statement.lstrip()[explain.end() :]
    elif kind == duckdb.StatementType.MULTI:
        raise QueryError("name the columns that PIVOT makes: PIVOT … ON column IN ('a', 'b') USING …")
    elif (other_way := _OTHER_WAYS.get(kind)) is not None:
        raise QueryError(other_way)
    elif kind != duckdb.StatementType.SELECT:
        raise QueryError(f"{_ALLOWED}, not {_name(statement, kind)}")
    try:
        functions = table_functions(cursor, statement)
    except ValueError as error:
        if kind == duckdb.StatementType.EXPLAIN:
            raise QueryError("EXPLAIN works only for queries that read") from error
        raise QueryError(f"{_ALLOWED}: {error}") from error
    except RecursionError:
        raise QueryError(_TOO_DEEP) from None
    for function in functions:
        if function not in _TABLE_FUNCTIONS:
            hint = f"; {_JOIN_ELSEWHERE}" if _READS_FILES.search(function) else ""
            raise QueryError(f"queries can't use the function {function}{hint}")
    if len(_CHECKED) >= MAX_CHECKED:
        _CHECKED.clear()
    _CHECKED.add(sql)


def _name(statement: str, kind: duckdb.StatementType) -> str:
    """Return a statement's name; DuckDB reports a wrong kind for some."""
    word = re.match(r"\s*(VACUUM|ANALYZE|(?:FORCE\s+)?CHECKPOINT)\b", statement, re.IGNORECASE)
    return word[1].upper() if word else kind.name.replace("_", " ")
