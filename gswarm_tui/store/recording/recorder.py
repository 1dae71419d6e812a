"""The recorder: a thread that writes every event to the database and never blocks the event loop.

All waiting events go into one transaction for the whole fleet. Events that can't be written now wait in
memory and are retried. Beyond a limit the recorder refuses frames; agents keep them and send them again.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from gswarm_tui.fleet.events import (
    Event,
    FrameArrived,
    FramesLost,
    NodeIntroduced,
    RecorderStatus,
    weight,
)
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.querying.cursor_pool import CursorPool
from gswarm_tui.store.querying.running_query import LocalSource
from gswarm_tui.store.recording.batch import Batch
from gswarm_tui.store.recording.database import Database, DataRefusedError, RecordingInfo
from gswarm_tui.store.recording.known_ids import KnownIds
from gswarm_tui.store.recording.profiles import ProfileFacts, StoredProfile
from gswarm_tui.store.recording.resume import Interrupted, Resumed, interrupted, load

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_MIN_WAL_BYTES = 2 * 1024 * 1024
_MAX_WAL_BYTES = 16 * 1024 * 1024
_COMMITS_PER_CHECKPOINT = 20
"""With fewer, a large fleet would checkpoint every few seconds."""
_SIGNAL_CHECK_S = 0.5
_REWRITE_TIMEOUT_S = 8.0
_MINUTES_AT_CLOSE = 10
"""At most this many minutes are summed up before the file closes; of others, readers use the samples."""


class FileWriter:
    """Writes events into one file; the writer's thread calls ``on_status`` after each commit.

    ``what`` describes a new recording, or is the number of an interrupted one in the file to resume. After
    ``open``, ``uid`` identifies the recording to the agents, ``resumed`` is the state of a resumed recording,
    and ``interrupted`` lists the file's other recordings without an end. ``commit_every_s`` is the least time
    between two commits, unless ``commit`` is called, and ``retry_every_s`` the pause after a failed one.
    ``keep_bytes`` is about how much memory may wait for a disk that can't be written. Beyond that, the
    recorder refuses newer frames, which agents keep until they are committed; the status lists the nodes that
    may send them again.
    ``allocation`` maps nodes to the device minors of the job's GPUs, where known. ``query_memory`` is what
    all queries together may use in bytes, None for a share of what is left.
    """

    def __init__(
        self,
        path: Path,
        what: RecordingInfo | int,
        on_status: Callable[[RecorderStatus], None],
        *,
        allocation: Mapping[str, frozenset[int]] | None = None,
        commit_every_s: float = 2.0,
        retry_every_s: float = 3.0,
        keep_bytes: int = 256 * 1024 * 1024,
        query_memory: int | None = None,
    ) -> None:
        self.path = path.absolute()
        self.uid = "" if isinstance(what, int) else what.uid or ""
        self.resumed: Resumed | None = None
        self.interrupted: Sequence[Interrupted] = ()
        self._what = what
        self._on_status = on_status
        self._allocation = allocation or {}
        self._refused: set[str] = set()
        self._commit_every_s = commit_every_s
        self._retry_every_s = retry_every_s
        self._keep_bytes = keep_bytes
        self._changed = threading.Condition()
        self._waiting: deque[Event] = deque()
        self._waiting_bytes = 0
        self._being_written = 0
        self._ended_at: float | None = None
        self._closing = False
        self._saved = threading.Event()
        self._thread: threading.Thread | None = None
        self._database: Database
        self._known_ids: KnownIds
        self._rows = 0
        self._commits = 0
        self._committed: dict[tuple[str, str], int] = {}
        self._error = ""
        self._closed = False
        self._query_memory = query_memory
        self._pool = CursorPool(self.path)
        self._work: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._awaited: list[Future[RecorderStatus]] = []
        self._next_profile = 1
        self.next_finding = 1

    def open(self) -> None:
        """Open or create the file and begin or resume a recording. Raises StoreError."""
        database = Database(self.path, self._pool, self._query_memory)
        try:
            source = self.queries()
            unended = interrupted(source)
            what = self._what
            self._known_ids = KnownIds(
                recording_id=what if isinstance(what, int) else database.begin_recording(what),
                next_node=database.next_free("node_id", "nodes"),
                next_gpu=database.next_free("gpu_id", "gpus"),
                next_session=database.next_free("session_id", "sessions"),
                allocation=self._allocation,
            )
            if isinstance(what, int):
                if what not in {one.recording_id for one in unended}:
                    raise StoreError(f"{self.path} has no interrupted recording {what}")
                self.resumed = load(source, self._known_ids)
                self._rows = self.resumed.rows
        except StoreError:
            database.close()
            raise
        self.uid = next((one.uid for one in unended if one.recording_id == what), self.uid)
        self.interrupted = [one for one in unended if one.recording_id != what]
        self._database = database
        self.next_finding = database.next_free("finding_id", "findings")
        self._next_profile = database.next_free("profile_id", "profiles")
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    @property
    def recording_id(self) -> int:
        """The number of the recording in the file, after ``open``."""
        return self._known_ids.recording_id

    @property
    def next_session(self) -> int:
        """The number that the next session gets in the file, after ``open``."""
        return self._known_ids.next_session

    @property
    def queried(self) -> bool:
        """Whether a query runs: after ``close``, one that DuckDB can't cancel."""
        return self._pool.busy

    def queries(self) -> LocalSource:
        """Return a source for queries on the file while it is recorded, one for each user."""
        return self._pool.source()

    def begin_profile(self, facts: ProfileFacts) -> Future[StoredProfile]:
        """Begin the import of a profile; the future raises RepeatedProfileError, StoreError.

        Call the profile's methods by ``in_thread`` only.
        """

        def begin() -> StoredProfile:
            number, self._next_profile = self._next_profile, self._next_profile + 1
            return self._database.profile(facts, self.recording_id, number)

        return self.in_thread(begin)

    def in_thread(self, call: Callable[[], T]) -> Future[T]:
        """Run a call in the recorder's thread between two commits."""
        future: Future[T] = Future()
        with self._changed:
            if self._closing:
                future.set_exception(StoreError(f"the recording in {self.path} has ended"))
            else:
                self._work.append((future, call))
                self._changed.notify()
        return future

    def submit(self, events: Sequence[Event]) -> None:
        """Queue events to be written soon; return at once."""
        if not events:
            return
        with self._changed:
            if self._closing:
                return
            size = sum(map(weight, events))
            if self._refused or self._waiting_bytes + size > self._keep_bytes:
                events = self._without_refused(events)
                size = sum(map(weight, events))
            self._waiting.extend(events)
            self._waiting_bytes += size
            self._changed.notify()

    def commit(self) -> Future[RecorderStatus]:
        """Commit all events now that were submitted before; the future has the status after the commit.

        The status has an error if the events couldn't be written yet.
        """
        future: Future[RecorderStatus] = Future()
        with self._changed:
            if not self._closing:
                self._awaited.append(future)
                self._changed.notify()
                return future
        future.set_result(self.status())
        return future

    def _without_refused(self, events: Sequence[Event]) -> list[Event]:
        """Return the events that fit into memory; once refused, a node is refused until its next hello.

        An agent then sends everything after the last committed frame, so no frame is skipped.
        """
        taken, room = [], self._keep_bytes - self._waiting_bytes
        for event in events:
            if isinstance(event, NodeIntroduced):
                self._refused.discard(event.node)
            elif isinstance(event, FrameArrived):
                room -= weight(event)
                if room < 0 or event.node in self._refused:
                    self._refused.add(event.node)
                    continue
            elif isinstance(event, FramesLost) and event.node in self._refused:
                continue
            taken.append(event)
        return taken

    def close(self, ended_at: float | None, timeout_s: float = 10.0) -> RecorderStatus:
        """Write waiting events, end open sessions and the recording, and close the file.

        Without ``ended_at`` the recording can be resumed later. Writing takes at most about ``timeout_s``,
        rewriting the file some seconds more; the status reports what could not be written.
        """
        with self._changed:
            self._ended_at = ended_at
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            if self._saved.wait(timeout_s):
                self._thread.join(2 * _REWRITE_TIMEOUT_S)
            else:
                self._error = f"{self.path} could not be written within {timeout_s:g} s"
            if self._thread.is_alive():
                atexit.register(_wait_at_exit, self._thread)
        return self.status()

    def status(self) -> RecorderStatus:
        """Return the state of the recorder."""
        with self._changed:
            waiting = len(self._waiting) + self._being_written
            refused = tuple(sorted(self._refused))
            room = self._waiting_bytes < self._keep_bytes // 2
        error = self._error
        if error and refused:
            error += f"; newer frames wait on {len(refused):,} node{'s' * (len(refused) > 1)}"
        if error and waiting and self._closed:
            error += f"; {waiting:,} events could not be saved"
        return RecorderStatus(
            path=str(self.path),
            rows=self._rows,
            file_bytes=self._database.bytes() if self._thread is not None else 0,
            waiting=waiting,
            committed=dict(self._committed),
            error=error,
            closed=self._closed,
            refused=() if error or not room else refused,
        )

    def _run(self) -> None:
        while not self._closing:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._awaited or self._work or self._closing)
            self._drain()
            self._pause(self._retry_every_s if self._error else self._commit_every_s)
        self._finish(self._ended_at)
        for future, _ in self._work:
            future.set_exception(StoreError(f"the recording in {self.path} has ended"))

    def _pause(self, pause_s: float) -> None:
        """Wait until the next commit; meanwhile do the work that others want done, unless the disk fails."""
        until, left = time.monotonic() + pause_s, pause_s
        while left >= 0:  # one piece of work is done also without a pause
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closing or self._awaited or (self._work and not self._error), left
                )
                if self._closing or self._awaited or self._error or not self._work:
                    return
                future, call = self._work.popleft()
            try:
                future.set_result(call())
            except Exception as error:  # the caller gets the error; recording continues
                future.set_exception(error)
            left = until - time.monotonic()

    def _drain(self) -> None:
        """Write all waiting events in one transaction; after a failure they wait again."""
        with self._changed:
            parts: deque[list[Event]] = deque([list(self._waiting)])
            self._being_written, self._waiting_bytes = len(self._waiting), 0
            self._waiting.clear()
            awaited, self._awaited = self._awaited, []
        try:
            while parts:
                self._write(parts)
            self._error = ""
        except (StoreError, MemoryError) as error:
            if isinstance(error, MemoryError):
                self._pool.stop("the recorder needed the memory that the query used")
            self._error = str(error) or "there is no memory left for the recorder"
            left = [event for part in parts for event in part]
            with self._changed:
                self._waiting.extendleft(reversed(left))
                self._waiting_bytes += sum(map(weight, left))
        finally:
            self._being_written = 0
        self._report()
        for future in awaited:
            future.set_result(self.status())
        if not self._error:
            self._tidy()

    def _write(self, parts: deque[list[Event]]) -> None:
        """Commit the first part; halve a part that the database refuses. Raises StoreError."""
        events = parts[0]
        try:
            batch = Batch(self._known_ids, events)
            self._database.write(list(batch.columns()))
        except (DataRefusedError, ValueError, TypeError, LookupError, ArithmeticError) as error:
            parts.popleft()
            if len(events) > 1:
                middle = len(events) // 2
                parts.extendleft((events[middle:], events[:middle]))
            else:
                _LOG.warning("an event could not be recorded: %s", error)
            return
        parts.popleft()
        self._keep(batch)

    def _keep(self, batch: Batch) -> None:
        self._known_ids = batch.known_ids
        self._rows += batch.rows
        self._commits += 1
        self._committed |= batch.committed()

    def _tidy(self) -> None:
        """Sum up a minute, and checkpoint before the write-ahead log grows in memory."""
        self._database.roll_up()
        wal_bytes = self._database.wal_bytes()
        try:
            many_commits = wal_bytes > _MIN_WAL_BYTES and self._commits >= _COMMITS_PER_CHECKPOINT
            if wal_bytes > _MAX_WAL_BYTES or many_commits:
                self._commits = 0
                self._database.checkpoint()
        except StoreError as error:
            self._error = str(error)
            self._report()

    def _finish(self, ended_at: float | None) -> None:
        self._drain()
        try:
            if not self._error and ended_at is not None:
                batch = Batch(self._known_ids, ())
                batch.end_sessions(ended_at)
                self._database.write(list(batch.columns()))
                self._keep(batch)
                self._database.end_recording(self._known_ids.recording_id, ended_at)
                self._database.describe()
            if not self._error:
                for _ in range(_MINUTES_AT_CLOSE):
                    if not self._database.roll_up(at_close=True):
                        break
                self._database.checkpoint()
        except StoreError as error:
            self._error = str(error)
        self._saved.set()
        if not self._error:
            self._database.rewrite(_REWRITE_TIMEOUT_S)
        self._database.close()
        self._closed = True
        self._report()

    def _report(self) -> None:
        try:
            self._on_status(self.status())
        except Exception:
            _LOG.exception("the callback for the recorder's status failed")  # recording continues


def _wait_at_exit(thread: threading.Thread) -> None:
    """Wait for the thread at exit, where Python would abort inside DuckDB; Ctrl-C exits at once."""
    try:
        while thread.is_alive():  # a signal that comes just before join is handled after it
            thread.join(_SIGNAL_CHECK_S)
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)
