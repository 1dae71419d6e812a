"""One statement that reads, carried out on a connection: what is allowed, its answer in batches, its end.

DuckDB is the first guard: connections that answer are read-only, or their transactions are, and they have no
access to files and networks. What a statement is and which functions its FROM clauses call is checked before
it runs, because DuckDB has functions that switch logging and profiling on, checkpoint, or take addresses in
memory, and lets any query call them.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb

from gswarm_tui.store.duckdb_internals import query_problem, table_functions
from gswarm_tui.store.errors import StoreError, explain
from gswarm_tui.store.querying.results import QueryError, Result

if TYPE_CHECKING:
    import numpy.typing as npt

T = TypeVar("T")

ROWS_AT_ONCE = 2_048
"""DuckDB's own batches have as many."""

ACCEPTED_MOST = 200
_ACCEPTED: set[str] = set()
"""Statements that were seen to only read; looking costs more than many of them."""
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
_EXPLAIN = re.compile(r"EXPLAIN\b\s*(ANALYZE\b\s*)?(\(\s*(ANALYZE|FORMAT)\b[^()]*\)\s*)?", re.IGNORECASE)
_ALLOWED = "only SELECT, FROM, WITH, VALUES, PIVOT, DESCRIBE, SUMMARIZE, SHOW and EXPLAIN can be used here"


def split(sql: str) -> list[str]:
    """The statements of a text, one by one. Raises QueryError."""
    try:
        return [statement.query.strip() for statement in duckdb.extract_statements(sql)]
    except duckdb.Error as error:
        raise QueryError(explain_query(error)) from error


class RunningQuery:
    """A statement under way on a cursor of its own, which ends with it.

    One thread fetches; any thread may ``stop`` it, and then it raises QueryError with that reason.
    """

    def __init__(
        self, cursor: duckdb.DuckDBPyConnection, path: Path, ended: Callable[[RunningQuery], None]
    ) -> None:
        self._cursor = cursor
        self._path = path
        self._ended = ended
        self._busy = threading.Lock()
        self._stopped = ""
        self.closed = False

    def answer(self, sql: str, values: Sequence[object]) -> Result:
        """Runs it until its first rows are there. Raises QueryError, StoreError."""
        with self._checked():
            self._patiently(lambda: self._run(sql, values))
            described = self._cursor.description or []
        names, types = [str(column[0]) for column in described], [str(column[1]) for column in described]
        return Result(names, types, self._batches(), self.close)

    def arrays(self, sql: str, values: Sequence[object]) -> dict[str, npt.NDArray[Any]]:
        """Runs it to its end: the answer by column, masked where NULL. Raises QueryError, StoreError."""
        with self._checked():
            self._patiently(lambda: self._run(sql, values))
            found = dict(self._patiently(self._cursor.fetchnumpy))
        self.close()
        return found

    def _run(self, sql: str, values: Sequence[object]) -> None:
        _check_read_only(self._cursor, sql)
        self._cursor.execute("BEGIN TRANSACTION READ ONLY")
        self._cursor.execute(sql, list(values))

    def _batches(self) -> Iterator[list[tuple[Any, ...]]]:
        rows = [()]
        while rows:
            with self._checked():
                rows = [] if self.closed else self._patiently(lambda: self._cursor.fetchmany(ROWS_AT_ONCE))
            if rows:
                yield rows
        self.close()

    def _patiently(self, call: Callable[[], T]) -> T:
        """Calls it so that Ctrl-C ends it: DuckDB doesn't look for signals while it works or waits.

        The cursor must not be closed under a thread that uses it, so nothing is raised before that has ended.
        """
        main = threading.current_thread() is threading.main_thread()
        if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return call()
        done: Future[T] = Future()
        cancelled = threading.Event()

        def run() -> None:
            try:
                done.set_result(call())
            except BaseException as error:
                done.set_exception(error)

        working = threading.Thread(target=run, name="query")
        signal.signal(signal.SIGINT, lambda *_: cancelled.set())
        try:
            working.start()
            while working.is_alive():
                if cancelled.is_set():
                    self._cursor.interrupt()
                working.join(0.05)
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if cancelled.is_set():
            raise KeyboardInterrupt
        return done.result()

    @contextlib.contextmanager
    def _checked(self) -> Iterator[None]:
        """Use the cursor; errors are sentences, and end it."""
        try:
            with self._busy:
                if self._stopped:
                    raise QueryError(self._stopped)
                yield
        except duckdb.Error as error:
            self.close()
            if self._stopped:
                raise QueryError(self._stopped) from None
            if isinstance(error, (duckdb.IOException, duckdb.FatalException, duckdb.InternalException)):
                raise StoreError(explain(error, self._path)) from error
            raise QueryError(explain_query(error)) from error
        except BaseException:
            self.close()
            raise

    def stop(self, reason: str, wait_s: float = 5.0) -> None:
        """Interrupts it, from any thread, and lets go of the cursor as soon as nobody uses it."""
        self._stopped = self._stopped or reason
        tries = max(1, round(wait_s / 0.05))
        for _ in range(tries):  # an interrupt that comes between two steps of a query is forgotten
            if self.closed:
                return
            with contextlib.suppress(duckdb.Error):
                self._cursor.interrupt()
            if self._busy.acquire(timeout=0.05):
                self._busy.release()
                self.close()
                return

    def close(self) -> None:
        """Ends it, unless that was done."""
        with self._busy:
            if self.closed:
                return
            self.closed = True
            with contextlib.suppress(duckdb.Error):
                self._cursor.close()
        self._ended(self)


def explain_query(error: duckdb.Error) -> str:
    """Return DuckDB's error about a query as one line, with its hint and the query's line."""
    if isinstance(error, duckdb.OutOfMemoryException):
        return "the query needs more memory than it may use; aggregate more, or query fewer rows at a time"
    problem = query_problem(error)
    if problem.writes:
        return "queries can't change a recording"
    if isinstance(error, duckdb.PermissionException) and problem.quoted:
        return f"queries can only read the recording, not {problem.quoted}"
    return problem.message + (f' (line {problem.line}: "{problem.line_text}")' if problem.line else "")


def _check_read_only(cursor: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Lets nothing pass but queries whose functions only compute. Raises QueryError, duckdb.Error."""
    if sql in _ACCEPTED:
        return
    statements = duckdb.extract_statements(sql)
    if len(statements) != 1:
        raise QueryError("run one statement at a time" if statements else "the query is empty")
    statement, kind = statements[0].query, statements[0].type
    if kind == duckdb.StatementType.EXPLAIN:
        statement = _EXPLAIN.sub("", statement, count=1)
    elif kind == duckdb.StatementType.MULTI:
        raise QueryError(
            "PIVOT needs the values that become columns: PIVOT … ON column IN ('a', 'b') USING …"
        )
    elif kind != duckdb.StatementType.SELECT:
        raise QueryError(f"{_ALLOWED}, not {_name(statement, kind)}")
    try:
        functions = table_functions(cursor, statement)
    except ValueError as error:
        if kind == duckdb.StatementType.EXPLAIN:
            raise QueryError("EXPLAIN works only for queries that read") from error
        raise QueryError(f"{_ALLOWED}: {error}") from error
    for function in functions:
        if function not in _TABLE_FUNCTIONS:
            raise QueryError(f"queries can't use the function {function}")
    if len(_ACCEPTED) >= ACCEPTED_MOST:
        _ACCEPTED.clear()
    _ACCEPTED.add(sql)


def _name(statement: str, kind: duckdb.StatementType) -> str:
    """What a statement is called; DuckDB takes some for other kinds than their first word says."""
    word = re.match(r"\s*(VACUUM|ANALYZE|(?:FORCE\s+)?CHECKPOINT)\b", statement, re.IGNORECASE)
    return word[1].upper() if word else kind.name.replace("_", " ")


class SpillFolder:
    """A folder among those for temporary files that DuckDB makes when it needs it; nobody guesses its name.

    It may take half of what is free there, at most ``most_bytes``.
    """

    def __init__(self, most_bytes: int = 1 << 40) -> None:
        above = Path(tempfile.gettempdir())
        self._path = above / f"gswarm-tui-{secrets.token_hex(8)}"
        self._bytes = min(most_bytes, shutil.disk_usage(above).free // 2)

    def settings(self) -> dict[str, str | bool | int | float | list[str]]:
        """What tells DuckDB so when it connects."""
        return {"temp_directory": str(self._path), "max_temp_directory_size": f"{self._bytes} bytes"}

    def remove(self) -> None:
        """Remove what is left of it."""
        shutil.rmtree(self._path, ignore_errors=True)
