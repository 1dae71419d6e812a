"""Worker threads: a call that hangs blocks only its own thread."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple


class QuickEvent:
    """A ``threading.Event`` for one waiting thread, which costs a fraction to create and to wait for.

    At 10 Hz the agent wakes up for little else: with ``threading.Event`` it takes 5 % more CPU.
    """

    def __init__(self) -> None:
        self._unset = threading.Lock()  # held until the event is set
        self._unset.acquire()

    def is_set(self) -> bool:
        """Return whether the event is set."""
        return not self._unset.locked()

    def set(self) -> None:
        """Wake the waiting thread, or the next one that waits."""
        try:
            self._unset.release()
        except RuntimeError:  # it is set already
            pass

    def wait(self, seconds: float) -> bool:
        """Wait for at most this many seconds; return whether the event is set."""
        if self._unset.acquire(timeout=max(0.0, seconds)):
            self._unset.release()
            return True
        return False

    def clear(self) -> None:
        """Unset the event."""
        self._unset.acquire(blocking=False)


class _Batch:
    """Jobs by key that one thread runs in turn; those not begun can be taken away."""

    def __init__(self, job: Callable[[int], Any], keys: Sequence[int]) -> None:
        self.job = job
        self.results: Dict[int, Any] = {}
        self.error: Optional[Exception] = None
        self.finished = QuickEvent()
        self._waiting = list(keys)
        self._lock = threading.Lock()
        self._current: Optional[int] = None
        self._begun = time.monotonic()

    def run(self) -> None:
        try:
            key = self._claim()
            while key is not None:
                self.results[key] = self.job(key)
                key = self._claim()
        except Exception as error:
            self.error = error
        finally:
            self.finished.set()

    def _claim(self) -> Optional[int]:
        with self._lock:
            self._current = self._waiting.pop(0) if self._waiting else None
            self._begun = time.monotonic()
            return self._current

    def patience_left(self, patience: float) -> float:
        """Return the seconds until the current job has taken too long."""
        with self._lock:
            return self._begun + patience - time.monotonic()

    def cancel(self) -> bool:
        """Take all jobs away unless one is under way; True if none is."""
        with self._lock:
            if self._current is None:
                self._waiting = []
            return self._current is None

    def cut(self) -> Tuple[Optional[int], List[int]]:
        """Return the current job, and the jobs not begun, which are taken away; (None, []) if none runs."""
        with self._lock:
            if self._current is None:
                return None, []
            left, self._waiting = self._waiting, []
            return self._current, left


class _Worker:
    """One thread and the keys that it does jobs for."""

    def __init__(self, name: str, keys: Sequence[int]) -> None:
        self.keys = list(keys)
        self.batch: Optional[_Batch] = None
        self._inbox: SimpleQueue[Optional[_Batch]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            batch = self._inbox.get()
            if batch is None:
                return
            batch.run()

    def is_free(self) -> bool:
        """Return whether it can begin a batch now; a batch that it has not begun is cancelled."""
        return self.batch is None or self.batch.cancel()

    def start(self, job: Callable[[int], Any], keys: Sequence[int]) -> None:
        self.batch = _Batch(job, keys)
        self._inbox.put(self.batch)

    def stop(self, timeout: float) -> bool:
        self._inbox.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()


class WorkerPool:
    """Runs one job for each of the keys 0..count-1 in as few threads as hanging jobs allow.

    All keys begin in one thread, which costs one wake-up a round. A key whose job takes longer than the
    patience keeps that thread to itself from then on, and a new thread takes over the other keys at once. A
    key whose job of an earlier round is still running is skipped and has no result.
    """

    def __init__(self, count: int, name: str) -> None:
        self._name = name
        self._workers: List[_Worker] = [_Worker(name, range(count))] if count else []
        self._round: List[_Worker] = []

    def start(self, job: Callable[[int], Any], keys: Sequence[int]) -> None:
        """Begin a round for some keys without waiting. Raises what a job raised since the last gathering."""
        self._isolate_running_jobs()
        self._round = []
        for worker in self._workers:
            own = [key for key in worker.keys if key in keys]
            if own and worker.is_free():
                worker.start(job, own)
                self._round.append(worker)

    def renew(self, key: int) -> None:
        """Give a key whose job is still running a new thread."""
        self._isolate_running_jobs()
        for worker in [worker for worker in self._workers if worker.keys == [key]]:
            worker.stop(0)
            self._workers.remove(worker)
            self._workers.append(_Worker(self._name, [key]))

    def gather(self, until: float, patience: float) -> Dict[int, Any]:
        """Return the results by key that arrive by ``until`` (time.monotonic()). Raises what a job raised."""
        results: Dict[int, Any] = {}
        waiting, self._round = self._round, []
        while waiting:
            worker = waiting.pop(0)
            batch = worker.batch
            if batch is None:
                continue
            while not batch.finished.is_set():
                seconds = min(until - time.monotonic(), batch.patience_left(patience))
                if seconds <= 0:
                    successor, left = self._split(worker, batch)
                    if successor is None:  # it has not begun, or is slow and already has its own thread
                        batch.finished.wait(until - time.monotonic())
                    elif left and time.monotonic() < until:
                        successor.start(batch.job, left)
                        waiting.append(successor)
                    break
                batch.finished.wait(seconds)
            results.update(batch.results)
            if batch.error is not None:
                raise batch.error
        return results

    def _isolate_running_jobs(self) -> None:
        for worker in list(self._workers):
            if worker.batch is None:
                continue
            if worker.batch.error is not None:
                raise worker.batch.error
            self._split(worker, worker.batch)

    def _split(self, worker: _Worker, batch: _Batch) -> Tuple[Optional[_Worker], List[int]]:
        """Leave the thread to its current job, and its other keys to a new worker.

        Returns the new worker, if one was needed, and which of its keys have not had their turn.
        """
        stuck, left = batch.cut()
        others = [key for key in worker.keys if key != stuck]
        if stuck is None or not others:
            return None, []
        worker.keys = [stuck]
        successor = _Worker(self._name, others)
        self._workers.append(successor)
        return successor, left

    def close(self, timeout: float) -> bool:
        """End the threads; False when one is still inside its job after that many seconds."""
        until = time.monotonic() + timeout
        ended = [worker.stop(max(0.0, until - time.monotonic())) for worker in self._workers]
        return all(ended)
