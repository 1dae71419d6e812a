"""The recorder: a thread that writes every event to the database and never makes anyone wait.

All that waits goes into one transaction for the whole fleet. What can't be written now is kept, up to a
limit, and tried again; what was committed is never lost. Beyond the limit, frames of agents that keep them
are refused until they can be taken again.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gswarm_agent.frame import ERROR
from gswarm_tui.fleet.events import (
    Event,
    EventLogged,
    FrameArrived,
    FramesLost,
    NodeIntroduced,
    RecorderStatus,
    weight,
)
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.querying.recorder_source import CursorPool, RecorderSource
from gswarm_tui.store.recording.batch import Batch
from gswarm_tui.store.recording.database import MEMORY, Database, DataRefusedError, RecordingInfo
from gswarm_tui.store.recording.ledger import Ledger
from gswarm_tui.store.recording.resume import Interrupted, Resumed, interrupted, load
from gswarm_tui.store.recording.sorting import Sorter

_LOG = logging.getLogger(__name__)
_LEAST_LOG = 2 * 1024 * 1024
_MOST_LOG = 16 * 1024 * 1024
_COMMITS_A_CHECKPOINT = 20
"""With fewer, a large fleet's log would be brought into the file every few seconds."""
_LOOK_S = 0.5
_COMPACTING_S = 4.0


class Recorder:
    """Records events into one file; ``on_status`` is called from the writer's thread after each commit.

    ``what`` describes a recording that begins, or is the number of one in the file that goes on. After
    ``open``, ``uid`` is its name to the agents, ``resumed`` is what is known of one that goes on, and
    ``interrupted`` are others that have no end.
    ``commit_every_s`` is the least time between two commits, ``retry_every_s`` the pause after a failed one,
    ``keep_bytes`` about how much memory may wait while nothing can be written. Then newer frames are refused
    if agents keep what isn't committed (``lasting``), and their nodes are in the status when they can come
    again; otherwise the oldest frames go.
    ``allocation`` holds, for each node of which it is known, the device minors of the job's GPUs.
    """

    def __init__(
        self,
        path: Path,
        what: RecordingInfo | int,
        on_status: Callable[[RecorderStatus], None],
        *,
        allocation: Mapping[str, frozenset[int]] | None = None,
        lasting: bool = False,
        commit_every_s: float = 0.5,
        retry_every_s: float = 3.0,
        keep_bytes: int = 256 * 1024 * 1024,
    ) -> None:
        self.path = path.absolute()
        self.uid = "" if isinstance(what, int) else what.uid or ""
        self.resumed: Resumed | None = None
        self.interrupted: Sequence[Interrupted] = ()
        self._what = what
        self._on_status = on_status
        self._allocation = allocation or {}
        self._lasting = lasting
        self._behind: set[str] = set()
        self._commit_every_s = commit_every_s
        self._retry_every_s = retry_every_s
        self._keep_bytes = keep_bytes
        self._changed = threading.Condition()
        self._waiting: deque[Event] = deque()
        self._waiting_bytes = 0
        self._in_hand = 0
        self._dropped = self._dropped_told = 0
        self._dropped_at = 0.0
        self._ended_at: float | None = None
        self._closing = False
        self._saved = threading.Event()
        self._thread: threading.Thread | None = None
        self._database: Database
        self._sorter: Sorter
        self._ledger: Ledger
        self._rows = 0
        self._commits = 0
        self._committed: dict[tuple[str, str], int] = {}
        self._error = ""
        self._closed = False
        self._lending = CursorPool(self.path, MEMORY)

    def open(self) -> None:
        """Opens or makes the file, adds a recording to it or goes on with one. Raises StoreError."""
        database = Database(self.path, self._lending)
        try:
            unended = interrupted(database)
            what = self._what
            self._ledger = Ledger(
                recording_id=what if isinstance(what, int) else database.begin_recording(what),
                next_node=database.next_free("node_id", "nodes"),
                next_gpu=database.next_free("gpu_id", "gpus"),
                next_session=database.next_free("session_id", "sessions"),
                allocation=self._allocation,
            )
            if isinstance(what, int):
                if what not in {one.recording_id for one in unended}:
                    raise StoreError(f"{self.path} has no interrupted recording {what}")
                self.resumed = load(database, self._ledger)
                self._rows = self.resumed.rows
        except StoreError:
            database.close()
            raise
        self.uid = next((one.uid for one in unended if one.recording_id == what), self.uid)
        self.interrupted = [one for one in unended if one.recording_id != what]
        self._database = database
        self._sorter = Sorter(database)
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    @property
    def recording_id(self) -> int:
        """The number of the recording in the file, once that is open."""
        return self._ledger.recording_id

    def queries(self) -> RecorderSource:
        """What answers questions about the file meanwhile; one for each place that asks."""
        return RecorderSource(self._lending)

    def submit(self, events: Sequence[Event]) -> None:
        """Takes events to be written soon; returns at once."""
        if not events:
            return
        with self._changed:
            if self._closing:
                return
            size = sum(map(weight, events))
            if self._lasting and (self._behind or self._waiting_bytes + size > self._keep_bytes):
                events = self._without_refused(events)
                size = sum(map(weight, events))
            self._waiting.extend(events)
            self._waiting_bytes += size
            self._bound()
            self._changed.notify()

    def _without_refused(self, events: Sequence[Event]) -> list[Event]:
        """The events that there is room for; of a node that there wasn't, no frame until it is met anew.

        What comes after a hello begins behind the last committed frame, so nothing is passed over.
        """
        taken, room = [], self._keep_bytes - self._waiting_bytes
        for event in events:
            if isinstance(event, NodeIntroduced):
                self._behind.discard(event.node)
            elif isinstance(event, FrameArrived):
                room -= weight(event)
                if room < 0 or event.node in self._behind:
                    self._behind.add(event.node)
                    continue
            elif isinstance(event, FramesLost) and event.node in self._behind:
                continue
            taken.append(event)
        return taken

    def close(self, ended_at: float | None, timeout_s: float = 10.0) -> RecorderStatus:
        """Writes what waits, ends open sessions and the recording, and lets go of the file.

        Without ``ended_at`` the recording can go on another time. Writing takes at most about ``timeout_s``,
        compacting what was written some seconds more; the status says what could not be written.
        """
        with self._changed:
            self._ended_at = ended_at
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            if self._saved.wait(timeout_s):
                self._thread.join(2 * _COMPACTING_S)
            else:
                self._error = f"{self.path} did not take the last frames within {timeout_s:g} s"
            if self._thread.is_alive():
                atexit.register(_outlast, self._thread)
        return self.status()

    def status(self) -> RecorderStatus:
        """What was done so far."""
        with self._changed:
            waiting = len(self._waiting) + self._in_hand
            behind = tuple(sorted(self._behind))
            room = self._waiting_bytes < self._keep_bytes // 2
        error = self._error
        if error and behind:
            error += f"; newer frames of {len(behind):,} nodes wait there"
        if error and self._dropped:
            error += f"; {self._dropped:,} of the oldest frames had to be dropped"
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
            behind=() if error or not room else behind,
        )

    def _run(self) -> None:
        while not self._closing:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
            self._drain()
            pause = self._retry_every_s if self._error else self._commit_every_s
            with self._changed:
                self._changed.wait_for(lambda: self._closing, pause)
        self._finish(self._ended_at)

    def _drain(self) -> None:
        """One transaction with all that waits; if that fails it waits again."""
        with self._changed:
            if untold := self._dropped - self._dropped_told:
                words = f"{untold} frames were dropped: too many waited to be written"
                self._waiting.appendleft(EventLogged(self._dropped_at, "dropped", ERROR, words))
                self._dropped_told = self._dropped
            parts: deque[list[Event]] = deque([list(self._waiting)])
            self._in_hand, self._waiting_bytes = len(self._waiting), 0
            self._waiting.clear()
        try:
            while parts:
                self._write(parts)
            self._error = ""
        except StoreError as error:
            self._error = str(error)
            left = [event for part in parts for event in part]
            with self._changed:
                self._waiting.extendleft(reversed(left))
                self._waiting_bytes += sum(map(weight, left))
                self._bound()
        finally:
            self._in_hand = 0
        self._tell()
        if not self._error:
            self._tidy()

    def _write(self, parts: deque[list[Event]]) -> None:
        """Commits the first part; one that the database would never take is halved. Raises StoreError."""
        events = parts[0]
        try:
            batch = Batch(self._ledger, events)
            tables = list(batch.columns())
            self._database.write(tables)
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
        self._sorter.added(tables)

    def _keep(self, batch: Batch) -> None:
        self._ledger = batch.ledger
        self._rows += batch.rows
        self._commits += 1
        self._committed |= batch.committed()

    def _tidy(self) -> None:
        """Brings the log into the file while it is small, and old rows in order.

        DuckDB has all rows of the log in memory: one that grew with the file would make memory grow.
        """
        try:
            self._sorter.work()
        except StoreError as error:
            _LOG.info("rows stay in the order in which they came: %s", error)
        log = self._database.wal_bytes()
        try:
            if log > _MOST_LOG or (log > _LEAST_LOG and self._commits >= _COMMITS_A_CHECKPOINT):
                self._commits = 0
                self._database.checkpoint()
        except StoreError as error:
            self._error = str(error)
            self._tell()

    def _finish(self, ended_at: float | None) -> None:
        try:
            self._database.step_aside()
        except StoreError as error:
            _LOG.warning("%s", error)
        self.path = self._database.path
        self._drain()
        try:
            if not self._error and ended_at is not None:
                batch = Batch(self._ledger, ())
                batch.end_sessions(ended_at)
                self._database.write(list(batch.columns()))
                self._keep(batch)
                self._database.end_recording(self._ledger.recording_id, ended_at)
            if not self._error:
                self._database.checkpoint()
        except StoreError as error:
            self._error = str(error)
        self._saved.set()
        if not self._error:
            self._compact()
        self._database.close()
        self._closed = True
        self._tell()

    def _compact(self) -> None:
        try:
            if self._database.compactable():
                self._sorter.finish()
                self._database.compact(_COMPACTING_S)
        except StoreError as error:
            _LOG.info("%s stays as it is: %s", self.path, error)

    def _tell(self) -> None:
        try:
            self._on_status(self.status())
        except Exception:
            # Whoever listens may be gone or wrong; the recording goes on.
            _LOG.exception("the recorder's status could not be told")

    def _bound(self) -> None:
        """Drops the oldest frames while more waits than may; everything else is small and stays."""
        if self._lasting or self._waiting_bytes <= self._keep_bytes:
            return
        target = self._keep_bytes * 9 // 10
        kept: list[Event] = []
        while self._waiting and self._waiting_bytes > target:
            event = self._waiting.popleft()
            if isinstance(event, FrameArrived):
                self._waiting_bytes -= weight(event)
                self._dropped += 1
                self._dropped_at = event.at
            else:
                kept.append(event)
        self._waiting.extendleft(reversed(kept))


def _outlast(thread: threading.Thread) -> None:
    """Wait for it, as Python's end would break DuckDB off and abort the process; ctrl+c ends this at once."""
    try:
        while thread.is_alive():  # a signal just before a wait is seen after it only
            thread.join(_LOOK_S)
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)
