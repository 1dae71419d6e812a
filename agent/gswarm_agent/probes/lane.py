"""Worker threads that keep a call that hangs from holding up anything but itself."""

from __future__ import annotations

import threading
import time
from queue import Empty, SimpleQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, Generic, List, Optional, Sequence, Tuple, TypeVar, Union

    T = TypeVar("T")
else:
    T = None

    class Generic:
        """That of ``typing``, as far as a class needs it when it runs."""

        def __class_getitem__(cls, _kind):
            return cls


class _Batch(Generic[T]):
    """Jobs that one thread does in turn, until it is cut off from those it hasn't begun."""

    def __init__(self, job: Callable[[int], T], keys: Sequence[int]) -> None:
        self.job = job
        self.results: Dict[int, T] = {}
        self.error: Optional[Exception] = None
        self.finished = False
        self._unfinished = threading.Lock()  # held until then: an Event takes ten times as long to make
        self._unfinished.acquire()
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
            self.finished = True
            self._unfinished.release()

    def wait(self, seconds: float) -> None:
        """Return when it is finished, or after so many seconds."""
        if self._unfinished.acquire(timeout=max(0.0, seconds)):
            self._unfinished.release()

    def _claim(self) -> Optional[int]:
        with self._lock:
            self._current = self._waiting.pop(0) if self._waiting else None
            self._begun = time.monotonic()
            return self._current

    def patience_left(self, patience: float) -> float:
        """Seconds until the job under way has taken too long."""
        with self._lock:
            return self._begun + patience - time.monotonic()

    def give_up(self) -> bool:
        """Take all jobs away, if none is under way; whether that is so."""
        with self._lock:
            if self._current is None:
                self._waiting = []
            return self._current is None

    def cut(self) -> Tuple[Optional[int], List[int]]:
        """The job under way, and the jobs that haven't begun, which are taken away if one is under way."""
        with self._lock:
            if self._current is None:
                return None, []
            left, self._waiting = self._waiting, []
            return self._current, left


class _Lane(Generic[T]):
    """One thread and the keys it is in charge of."""

    def __init__(self, name: str, keys: Sequence[int]) -> None:
        self.keys = list(keys)
        self.batch: Optional[_Batch[T]] = None
        self._inbox: SimpleQueue[Optional[_Batch[T]]] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while True:
            batch = self._inbox.get()
            if batch is None:
                return
            batch.run()

    def is_free(self) -> bool:
        """Whether it can begin a batch now; one that it hasn't begun is given up."""
        return self.batch is None or self.batch.give_up()

    def start(self, job: Callable[[int], T], keys: Sequence[int]) -> None:
        self.batch = _Batch(job, keys)
        self._inbox.put(self.batch)

    def stop(self, timeout: float) -> bool:
        self._inbox.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()


class Errand(Generic[T]):
    """One job at a time in a thread of its own, for which nobody has to wait."""

    def __init__(self, name: str) -> None:
        self.idle = True
        self._inbox: SimpleQueue[Optional[Callable[[], T]]] = SimpleQueue()
        self._outbox: SimpleQueue[Union[T, _Failure]] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def start(self, job: Callable[[], T]) -> None:
        """Begin the job; the one before must have been taken."""
        self.idle = False
        self._inbox.put(job)

    def take(self, seconds: float = 0) -> Optional[T]:
        """The job's result, None while it isn't there after that time; raises what the job raised."""
        if self.idle:
            return None
        try:
            result = self._outbox.get(timeout=max(0.0, seconds))
        except Empty:
            return None
        self.idle = True
        if isinstance(result, _Failure):
            raise result.error
        return result

    def close(self, timeout: float) -> bool:
        """End the thread; False when it is still inside its job after that many seconds."""
        self._inbox.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while True:
            job = self._inbox.get()
            if job is None:
                return
            try:
                self._outbox.put(job())
            except Exception as error:
                self._outbox.put(_Failure(error))


class _Failure:
    """What a job raised instead of a result."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Lanes(Generic[T]):
    """Does one job for each of the keys 0..count-1 in as few threads as their behaviour allows.

    All keys begin in one thread, which costs one wake-up a round. A key whose job takes longer than the
    patience keeps that thread to itself from then on, and a new one takes over the others at once. A key that
    is still at work from an earlier round is not asked again and has no result.
    """

    def __init__(self, count: int, name: str) -> None:
        self._name = name
        self._lanes: List[_Lane[T]] = [_Lane(name, range(count))] if count else []
        self._round: List[_Lane[T]] = []

    def start(self, job: Callable[[int], T], keys: Sequence[int]) -> None:
        """Begin a round of some keys; returns at once. Raises what a job raised since it was waited for."""
        self._leave_those_at_work()
        self._round = []
        for lane in self._lanes:
            asked = [key for key in lane.keys if key in keys]
            if asked and lane.is_free():
                lane.start(job, asked)
                self._round.append(lane)

    def renew(self, key: int) -> None:
        """From now on ask a key that is still at work in a new thread."""
        self._leave_those_at_work()
        for lane in [lane for lane in self._lanes if lane.keys == [key]]:
            lane.stop(0)
            self._lanes.remove(lane)
            self._lanes.append(_Lane(self._name, [key]))

    def gather(self, until: float, patience: float) -> Dict[int, T]:
        """The results by key that are there by ``until`` (time.monotonic()); raises what a job raised."""
        results: Dict[int, T] = {}
        waiting, self._round = self._round, []
        while waiting:
            lane = waiting.pop(0)
            batch = lane.batch
            if batch is None:
                continue
            while not batch.finished:
                seconds = min(until - time.monotonic(), batch.patience_left(patience))
                if seconds <= 0:
                    successor, left = self._split(lane, batch)
                    if successor is None:  # it hasn't begun, or is slow and known for it
                        batch.wait(until - time.monotonic())
                    elif left and time.monotonic() < until:
                        successor.start(batch.job, left)
                        waiting.append(successor)
                    break
                batch.wait(seconds)
            results.update(batch.results)
            if batch.error is not None:
                raise batch.error
        return results

    def _leave_those_at_work(self) -> None:
        for lane in list(self._lanes):
            if lane.batch is None:
                continue
            if lane.batch.error is not None:
                raise lane.batch.error
            self._split(lane, lane.batch)

    def _split(self, lane: _Lane[T], batch: _Batch[T]) -> Tuple[Optional[_Lane[T]], List[int]]:
        """Leave the thread to the job it is at and its other keys to a new one.

        Returns the new one, if one was needed, and which of its keys have not had their turn.
        """
        stuck, left = batch.cut()
        others = [key for key in lane.keys if key != stuck]
        if stuck is None or not others:
            return None, []
        lane.keys = [stuck]
        successor: _Lane[T] = _Lane(self._name, others)
        self._lanes.append(successor)
        return successor, left

    def close(self, timeout: float) -> bool:
        """End the threads; False when one is still inside its job after that many seconds."""
        until = time.monotonic() + timeout
        ended = [lane.stop(max(0.0, until - time.monotonic())) for lane in self._lanes]
        return all(ended)
