"""Read-only queries on a file while the recorder writes it, on cursors of the recorder's connection.

Recording comes first: queries are few, limited in time, and end when the recorder needs their memory or has
to reopen its file.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from contextlib import suppress
from pathlib import Path

import duckdb

from gswarm_tui.store.duckdb_internals import release_memory, return_free_memory
from gswarm_tui.store.querying.memory import query_memory
from gswarm_tui.store.querying.results import QueryError
from gswarm_tui.store.querying.running_query import LocalSource, RunningQuery, explain_query

MAX_QUERIES = 8
TIMEOUT_S = 600.0
STOPPED_WITHIN_S = 5.0
THREADS = 2
"""Threads while a query runs, else one: with two, the recorder's own statements take 0.4 more CPU."""
GROWN_BYTES = 32 * 1024**2
"""After queries that needed more, freed memory is returned to the system; this takes some milliseconds."""
THREAD_SLACK = 512 * 1024**2
"""Memory for stacks of threads that start while a query runs, ``STACK_BYTES`` each and hardly used."""
STACK_BYTES = 8 * 1024**2
_PAGE = os.sysconf("SC_PAGE_SIZE")


class CursorPool:
    """Cursors of the recorder's connection for queries; usable from any thread.

    ``usual_memory`` is the connection's memory limit in bytes without queries, ``memory`` what all queries
    together may use beyond it (None: a share of what is left when they start), ``timeout_s`` the time a query
    may take until its last row is fetched.
    """

    def __init__(
        self, path: Path, usual_memory: int, timeout_s: float = TIMEOUT_S, *, memory: int | None = None
    ) -> None:
        self.path = path
        self._usual_memory = usual_memory
        self._memory = memory
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._running: dict[RunningQuery, threading.Timer] = {}
        self._free = threading.BoundedSemaphore(MAX_QUERIES)
        self._memory_limit = _MemoryLimit()
        self._resident_before = 0

    def open(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Serve queries from this connection, which the pool owns from now on."""
        with self._lock:
            self._connection = connection

    def close(self, reason: str) -> None:
        """End all queries and close the connection."""
        with self._lock:
            connection, self._connection = self._connection, None
        self.stop(reason)
        if connection is not None:
            with suppress(duckdb.Error):  # a query that DuckDB can't cancel uses it
                connection.close()

    def stop(self, reason: str) -> bool:
        """End all queries within ``STOPPED_WITHIN_S``, if DuckDB can; return whether any ran."""
        with self._lock:
            running = list(self._running)
        deadline = time.monotonic() + STOPPED_WITHIN_S
        for query in running:
            query.stop(reason, deadline - time.monotonic())
        return bool(running)

    @property
    def busy(self) -> bool:
        """Whether a query runs."""
        with self._lock:
            return bool(self._running)

    def source(self) -> LocalSource:
        """Return a QuerySource on the file while it is recorded; each user of the file has its own."""
        return LocalSource(self.path, self.start_query, running=True)

    def start_query(self) -> RunningQuery:
        """Return a cursor for one query. Raises QueryError if the file can't be queried now."""
        if not self._free.acquire(timeout=10):
            raise QueryError(
                f"{MAX_QUERIES} queries already run on {self.path}; try again when one has ended"
            )
        try:
            with self._lock:
                if self._connection is None:
                    raise QueryError(f"{self.path} isn't open now; try again in a moment")
                if not self._running:
                    memory = self._usual_memory + (self._memory or query_memory())
                    self._connection.execute(f"SET memory_limit = '{memory}B'")
                    self._connection.execute(f"SET threads = {THREADS}")
                    writable, self._resident_before = _process_memory()
                    self._memory_limit.set(writable + memory + THREAD_SLACK)
                cursor = self._connection.cursor()
                cursor.execute("USE rec")
                query = RunningQuery(cursor, self.path, self._ended)
                late = f"the query took longer than {self._timeout_s:g} s, the limit while recording"
                timer = threading.Timer(self._timeout_s, query.stop, [late])
                timer.daemon = True
                timer.start()
                self._running[query] = timer
        except BaseException as error:
            self._restore_limits()
            self._free.release()
            if isinstance(error, duckdb.Error):
                raise QueryError(f"{self.path} can't be queried now: {explain_query(error)}") from error
            if isinstance(error, OSError):
                raise QueryError(f"{self.path} can't be queried now: {error.strerror}") from error
            raise
        return query

    def release_memory(self) -> None:
        """Free the memory that queries needed and that caches the file, unless a query runs."""
        with self._lock:
            if self._connection is not None and not self._running:
                release_memory(self._connection, f"{self._usual_memory}B")

    def _ended(self, query: RunningQuery) -> None:
        with self._lock:
            self._running.pop(query).cancel()
        self._restore_limits()
        self._free.release()

    def _restore_limits(self) -> None:
        with self._lock:
            if self._running:
                return
            self._memory_limit.restore()
            if self._connection is not None:
                with suppress(duckdb.Error):
                    self._connection.execute("SET threads = 1")
                with suppress(duckdb.Error):  # the recorder's own blocks don't fit at this moment
                    self._connection.execute(f"SET memory_limit = '{self._usual_memory}B'")
            grown = False
            with suppress(OSError):
                grown = _process_memory()[1] > self._resident_before + GROWN_BYTES
        if grown:
            return_free_memory()


def _process_memory() -> tuple[int, int]:
    """Return how many bytes of memory this process may write to, and how many of all are in memory."""
    pages = [int(count) for count in Path("/proc/self/statm").read_text().split()]  # see proc(5)
    return pages[5] * _PAGE, pages[1] * _PAGE


class _MemoryLimit:
    """A limit on the memory that the process may write to, beyond its present size, while queries run.

    DuckDB's memory limit covers its own blocks. A list or the state of a quantile is allocated outside of
    them; without this limit, a query on hundreds of millions of rows makes the kernel kill the recorder.
    It isn't a limit on address space: of that glibc reserves 128 MiB for each thread on machines with many
    cores, and queries failed there.
    """

    def __init__(self) -> None:
        _limit_stacks()
        self._before: tuple[int, int] | None = None

    def set(self, limit: int) -> None:
        """Apply the limit in bytes; a lower one that is set already stays."""
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if self._before is None and (soft == resource.RLIM_INFINITY or limit < soft):
            self._before = soft, hard
            resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))

    def restore(self) -> None:
        """Restore the limit as it was before ``set``."""
        before, self._before = self._before, None
        if before is not None:
            resource.setrlimit(resource.RLIMIT_DATA, before)


def _limit_stacks() -> None:
    """Give new threads stacks of ``STACK_BYTES`` where ``ulimit -s`` is higher: all counts as memory."""
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    if stack == resource.RLIM_INFINITY or stack <= STACK_BYTES:  # without a limit, glibc takes 2 MiB
        return
    import ctypes

    library = ctypes.CDLL(None)
    attributes = ctypes.create_string_buffer(256)  # more than a pthread_attr_t
    with suppress(AttributeError):  # musl has small stacks, whatever the limit is
        library.pthread_getattr_default_np(attributes)
        library.pthread_attr_setstacksize(attributes, ctypes.c_size_t(STACK_BYTES))
        library.pthread_setattr_default_np(attributes)
