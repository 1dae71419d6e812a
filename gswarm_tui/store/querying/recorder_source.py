"""Queries on a file while the recorder writes it: cursors of its connection that only read.

Recording comes first: queries are few, bounded in time, and end where the recorder needs their memory or has
to open its file anew.
"""

from __future__ import annotations

import os
import resource
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from gswarm_tui.store.querying.results import QueryError, Result
from gswarm_tui.store.querying.running_query import RunningQuery, explain_query

if TYPE_CHECKING:
    import numpy.typing as npt

AT_ONCE = 8
LONGEST_S = 600.0
THREADS = 2
"""So many work while there is a query, else one: for what the recorder writes two take 0.4 more CPU."""
MEMORY = "1GB"
HEADROOM = 3 * 1024**3
"""What all queries together may allocate, DuckDB's own blocks included."""
_CANCELLED = "the query was cancelled"


class CursorPool:
    """Cursors of the recorder's connection, lent to whoever asks while there is one.

    ``usual_memory`` is the connection's bound without queries, ``longest_s`` the time that a query may take
    until its last row is fetched. All methods may be called from any thread.
    """

    def __init__(self, path: Path, usual_memory: str, longest_s: float = LONGEST_S) -> None:
        self.path = path
        self._usual_memory = usual_memory
        self._longest_s = longest_s
        self._lock = threading.Lock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._out: dict[RunningQuery, threading.Timer] = {}
        self._room = threading.BoundedSemaphore(AT_ONCE)
        self._ceiling = AddressSpaceLimit(HEADROOM)

    def serve(self, connection: duckdb.DuckDBPyConnection) -> None:
        """From now on there is this connection; it is given over to be used here alone."""
        with self._lock:
            self._connection = connection

    def withdraw(self, reason: str) -> None:
        """The recorder is about to close: no more cursors, and all queries end."""
        with self._lock:
            connection, self._connection = self._connection, None
        self.stop(reason)
        if connection is not None:
            connection.close()

    def stop(self, reason: str) -> bool:
        """Ends all queries; whether there were any."""
        with self._lock:
            out = list(self._out)
        for asked in out:
            asked.stop(reason)
        return bool(out)

    def lend(self) -> RunningQuery:
        """Something to ask with. Raises QueryError where the file can't be asked now."""
        if not self._room.acquire(timeout=10):
            raise QueryError(f"{AT_ONCE} queries run on {self.path} already; ask again when one has ended")
        try:
            with self._lock:
                if self._connection is None:
                    raise QueryError(f"{self.path} isn't open now; ask again in a moment")
                if not self._out:
                    self._connection.execute(f"SET memory_limit = '{MEMORY}'")
                    self._connection.execute(f"SET threads = {THREADS}")
                    self._ceiling.set()
                cursor = self._connection.cursor()
                cursor.execute("USE rec")
                asked = RunningQuery(cursor, self.path, self._ended)
                words = f"the query took longer than {self._longest_s:g} s, the most while this is recorded"
                timer = threading.Timer(self._longest_s, asked.stop, [words])
                timer.daemon = True
                timer.start()
                self._out[asked] = timer
        except BaseException as error:
            self._lift()
            self._room.release()
            if isinstance(error, duckdb.Error):
                raise QueryError(f"{self.path} can't be asked now: {explain_query(error)}") from error
            raise
        return asked

    def settle(self) -> None:
        """Give back the memory that queries needed, and all that is in the file, where none runs.

        DuckDB queues each piece of memory to be given back some time, and remembers those that are gone
        already until it looks through the queue. That it does only while it has more than it may.
        """
        with self._lock:
            if self._connection is not None and not self._out:
                with suppress(duckdb.OutOfMemoryException):  # nobody can keep to so little
                    self._connection.execute("SET memory_limit = '1KB'")
                self._connection.execute(f"SET memory_limit = '{self._usual_memory}'")

    def _ended(self, asked: RunningQuery) -> None:
        with self._lock:
            self._out.pop(asked).cancel()
        self._lift()
        self._room.release()

    def _lift(self) -> None:
        with self._lock:
            if self._out:
                return
            self._ceiling.lift()
            if self._connection is not None:
                with suppress(duckdb.Error):
                    self._connection.execute("SET threads = 1")


class RecorderSource:
    """A Source on a file that is being recorded in this process; one for each place that asks.

    It may be used by several threads; ``ask`` waits for the first rows, so not by one that draws.
    """

    running = True

    def __init__(self, lending: CursorPool) -> None:
        self.path = lending.path
        self._lending = lending
        self._lock = threading.Lock()
        self._asked: list[RunningQuery] = []
        self._closed = False

    def ask(self, sql: str, *values: object) -> Result:
        """The answer to one statement that reads. Raises QueryError, StoreError."""
        return self._new().answer(sql, values)

    def arrays(self, sql: str, *values: object) -> dict[str, npt.NDArray[Any]]:
        """The whole answer by column, NumPy masked where NULL. Raises QueryError, StoreError."""
        return self._new().arrays(sql, values)

    def _new(self) -> RunningQuery:
        asked = self._lending.lend()
        with self._lock:
            self._asked = [one for one in self._asked if not one.closed] + [asked]
            if not self._closed:
                return asked
        asked.close()
        raise QueryError(_CANCELLED)

    def interrupt(self) -> None:
        """Ends what was asked here and isn't answered yet, from any thread: QueryError is raised there."""
        with self._lock:
            asked, self._asked = self._asked, []
        for one in asked:
            if not one.closed:
                one.stop(_CANCELLED)

    def close(self) -> None:
        """Let go of it; what is unanswered ends, and nothing more is answered."""
        self._closed = True
        self.interrupt()


_PAGE = os.sysconf("SC_PAGE_SIZE")


class AddressSpaceLimit:
    """Lets the process map so many bytes more than it has, while it is set; asking for more fails there."""

    def __init__(self, headroom: int) -> None:
        self._headroom = headroom
        self._before: tuple[int, int] | None = None

    def set(self) -> None:
        """From now on; a lower limit that is there already stays."""
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = _mapped() + self._headroom
        if self._before is None and (soft == resource.RLIM_INFINITY or most < soft):
            self._before = soft, hard
            resource.setrlimit(resource.RLIMIT_AS, (most, hard))

    def lift(self) -> None:
        """As it was before."""
        before, self._before = self._before, None
        if before is not None:
            resource.setrlimit(resource.RLIMIT_AS, before)


def _mapped() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE
