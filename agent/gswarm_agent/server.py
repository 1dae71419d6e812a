"""The agent that outlives its connections: samples for as long as a recording wants, and serves its heads.

Two threads: the main one samples, the other one does everything else, except that the main one itself sends a
frame that the head takes at once: to wake the other costs more. Heads come over a unix socket in the
recording's folder; the newest that starts replaces the one before. Without a head the agent goes on, and what
it measures waits in the spool, also on disk, until a head comes back, nobody has come for the linger time, or
the job has ended.
"""

from __future__ import annotations

import math
import selectors
import signal
import socket
import threading
import time
from collections import deque

from gswarm_agent.calling import is_own
from gswarm_agent.delivery import Delivery
from gswarm_agent.folder import SOCKET, Folder, remove_forgotten
from gswarm_agent.frame import Frame, Hello
from gswarm_agent.frozen import dataclass, replace
from gswarm_agent.hello import make_hello
from gswarm_agent.marks import Marks
from gswarm_agent.process import Signals, name_process
from gswarm_agent.sampler import Sampler, SystemWatch, clamp_interval, run_until_stopped
from gswarm_agent.spool import MIB, Spool
from gswarm_agent.visitor import Visitor
from gswarm_agent.wire import (
    ENDED_BY,
    FRAMES_REMAIN,
    JOB_ENDED,
    QUERY_LIFE,
    SENT_ALL,
    TAKEN_OVER,
    Ack,
    JobEnds,
    Message,
    SetInterval,
    Start,
    Stop,
    clip_text,
)
from gswarm_agent.wire_values import WireError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Deque, List, Optional, Tuple, Union

    from gswarm_agent.probes.base import Probe

ASKED = "asked to stop"
STOP_S = 10.0
SIGNAL_S = 3.0
SPILL_S = 5.0
"""So long frames wait for a head to say that they are on its disk before they go to the node's."""
_START_S = 60.0
_TICK_S = 1.0


@dataclass(frozen=True)
class Limits:
    """How long to go on alone, in seconds, and how much to keep, in MiB.

    With ``only_left`` nothing is measured: the first head gets what earlier lives left.
    """

    linger: float = 86_400.0
    memory_mib: float = 16.0
    spool_mib: float = 256.0
    only_left: bool = False


class Server:
    """Everything but the sampling, which is the main thread's.

    ``run`` is the second thread. The main one waits for ``started``, gets its sampler by ``introduce``, puts
    frames until that is stopped, and says ``sampled`` at last, and ``finish`` when ``run`` has returned.
    """

    def __init__(self, folder: Folder, listener: socket.socket, signals: Signals, limits: Limits) -> None:
        self.started = threading.Event()
        self.watch = SystemWatch()
        self._folder = folder
        self._listener = listener
        self._signals = signals
        self._linger_s = limits.linger
        self._only_left = limits.only_left
        self._spool = Spool(folder, round(limits.memory_mib * MIB), round(limits.spool_mib * MIB))
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        # To use the spool, the marks and the visitors: the second thread's turn, except while it waits.
        self._turn = threading.Lock()
        self._turn.acquire()
        self._sampler: Optional[Sampler] = None
        self._said: Optional[Hello] = None
        self._interval_ms = 0
        self._ending = ""
        self._inbox: Deque[Union[Hello, Frame]] = deque()
        self._marks = Marks()
        self._sampling = True
        self._spilled = False
        self._hello: Optional[Hello] = None
        self._visitors: List[Visitor] = []
        self._head: Optional[Visitor] = None
        self._patience = 0.0
        self._job_ends = math.inf
        self._rest_s = _TICK_S
        self._alone_since = self._spilled_at = time.monotonic()

    # The main thread's side.

    def introduce(self, probe: Probe, simulated: bool) -> Optional[Sampler]:
        """A new life begins; the sampler to run, or None where the end came first."""
        facts = probe.facts()
        with self._lock:
            if self._ending:
                return None
            self._sampler = Sampler(probe, self._interval_ms, self.watch)
        self._said = make_hello(facts, self._sampler.interval_ms, simulated)
        self._inbox.append(self._said)  # it goes with the first frame, or at the next tick
        return self._sampler

    def reintroduce(self, probe: Probe) -> None:
        """Say hello again, in the same life, if other things can't be measured than was said before."""
        _, _, capabilities = probe.facts()
        if self._said is not None and capabilities != self._said.capabilities:
            self._said = replace(self._said, capabilities=capabilities)
            self._put(self._said)

    def put(self, frame: Frame) -> None:
        """Deliver a frame: at once to a head that has taken all before, else by the other thread."""
        if self._turn.acquire(blocking=False):
            try:
                if self._head is not None and not (self._head.more or self._inbox or self._ending):
                    self._inbox.append(frame)
                    self._take_in()
                    self._send(self._head)
                    return
            finally:
                self._turn.release()
        self._put(frame)

    def wanted(self) -> int:
        """How many frames more the marks need that were taken before the end."""
        return self._marks.frames

    def _put(self, message: Union[Hello, Frame]) -> None:
        self._inbox.append(message)
        self._signals.wake()

    def sampled(self, failure: str = "") -> None:
        """No frame will come any more; ``failure`` says why, where nobody asked for it."""
        if failure:
            self._end(failure, SIGNAL_S)
        self._sampling = False
        self._signals.wake()

    def finish(self) -> None:
        """Leave on disk what nobody acknowledged, and else nothing at all."""
        self._take_in()
        if self._spool.empty:
            self._folder.remove()
        else:
            self._spool.spill()

    # The second thread's side.

    def run(self) -> None:
        """Serve until the end. Whatever goes wrong here ends the sampling too."""
        failure = "nothing is left to do"
        try:
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
            self._selector.register(self._signals.reading, selectors.EVENT_READ, self._hear_signal)
            while not self._is_over():
                for key, _ in self._wait():
                    key.data()
                self._take_in()
                self._look_at_the_time()
                for visitor in list(self._visitors):
                    self._send(visitor)
        except Exception as error:
            import traceback

            traceback.print_exc()
            failure = f"the agent failed: {type(error).__name__}: {error}"
            if self._head is not None:
                self._head.end(failure)
                self._send(self._head)
        finally:
            self._end(failure, 0)
            self._folder.unlink(SOCKET)
            self._listener.close()
            for visitor in list(self._visitors):
                self._leave(visitor)
            self._selector.close()

    def _wait(self) -> List[Tuple[selectors.SelectorKey, int]]:
        """What has happened, if only that it is time to look."""
        self._turn.release()
        try:
            return self._selector.select(self._rest_s)
        finally:
            self._turn.acquire()

    def _end(self, reason: str, patience_s: float) -> None:
        """Stop sampling; then give the head so long to acknowledge."""
        with self._lock:
            if not self._ending:
                self._ending = clip_text(reason)
                self._patience = time.monotonic() + patience_s
            if self._sampler:
                self._sampler.stop()
        self.started.set()

    def _is_over(self) -> bool:
        if not self._ending or self._sampling or self._inbox:
            return False
        if not self._spilled and self._ending != ASKED:
            self._spilled = True
            self._spool.spill()
        if self._head is not None and (self._spool.empty or time.monotonic() >= self._patience):
            self._head.end(self._ending + ("" if self._head.delivery.all_sent else FRAMES_REMAIN))
            self._send(self._head)
        return self._head is None

    def _take_in(self) -> None:
        while self._inbox:
            item = self._inbox.popleft()
            if isinstance(item, Frame):
                self._spool.put(self._marks.put_on(item))
                continue
            if self._hello is None:
                self._spool.begin(item)
            else:
                self._spool.change(item)
            self._hello = item
            self._introduce_to_head()

    def _introduce_to_head(self) -> None:
        if self._head is not None and self._hello is not None:
            self._head.delivery.introduce(replace(self._hello, interval_ms=self._interval_ms))

    def _look_at_the_time(self) -> None:
        now, self._rest_s = time.monotonic(), _TICK_S
        for visitor in [v for v in self._visitors if v.leaves_at is not None and v.leaves_at <= now]:
            self._leave(visitor)
        if now >= self._job_ends:
            self._end(JOB_ENDED, SIGNAL_S)
        if self._ending:
            return
        # A head that acknowledges nothing may be cut off, which isn't noticed for minutes.
        waited_s = self._spool.waited_ns(self.watch.wall_ns()) / 1e9
        if waited_s > SPILL_S or (self._head is None and now - self._spilled_at >= SPILL_S):
            self._spilled_at = now
            self._spool.spill()
        if self._head is not None:
            if self._hello is not None and all(v.leaves_at is None for v in self._visitors):
                self._rest_s = max(_TICK_S, min(SPILL_S - waited_s, self._job_ends - now))
            return
        longest = self._linger_s if self._hello else min(self._linger_s, _START_S)
        if now - self._alone_since > longest:
            self._end(f"no head came for {longest:.0f} s", 0)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if not is_own(connection):
            connection.close()
            return
        connection.setblocking(False)
        visitor = Visitor(connection, Delivery(self._spool, self.watch.wall_ns))
        self._visitors.append(visitor)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._hear(visitor))

    def _hear_signal(self) -> None:
        for number in self._signals.take():
            self._end(f"{ENDED_BY}{signal.Signals(number).name}", SIGNAL_S)

    def _hear(self, visitor: Visitor) -> None:
        try:
            data = visitor.receive()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._leave(visitor)
        elif (question := visitor.hear(data)) is not None:
            if question and not visitor.answer(self._answer(question)):
                self._leave(visitor)
        else:
            try:
                for message in visitor.delivery.receive(data):
                    self._handle(visitor, message)
            except WireError as error:
                visitor.end(f"the head sent something unexpected: {error}")
            if self._head is not None:
                self.started.set()

    def _answer(self, question: bytes) -> str:
        if question == QUERY_LIFE:
            return f"{self._hello.life if self._hello else ''}\n"
        from gswarm_agent.answering import answer

        measures = self._hello is not None and not self._ending
        return answer(question, self._spool, self._marks if measures else None, self.watch.wall_ns())

    def _handle(self, visitor: Visitor, message: Message) -> None:
        if isinstance(message, Start) and not visitor.delivery.started:
            if self._head is not None and self._head is not visitor:
                self._head.end(TAKEN_OVER)
            self._head = visitor
            visitor.delivery.start(message)
            self._set_interval(message.interval_ms)
            self._introduce_to_head()
            if self._only_left:
                self._end(SENT_ALL, STOP_S)
        elif visitor is not self._head:
            return
        elif isinstance(message, Ack):
            self._spool.acknowledge(message.life, message.seq)
            if self._ending in (ASKED, SENT_ALL):
                self._patience = time.monotonic() + STOP_S
        elif isinstance(message, SetInterval):
            self._set_interval(message.interval_ms)
        elif isinstance(message, JobEnds) and not self._only_left:
            left_s = math.inf if message.at is None else (message.at - message.sent) / 1e9
            self._job_ends = time.monotonic() + left_s
        elif isinstance(message, Stop):
            self._end(ASKED, STOP_S)

    def _set_interval(self, interval_ms: int) -> None:
        with self._lock:
            interval_ms = clamp_interval(interval_ms)
            if self._sampler and interval_ms != self._interval_ms:
                self._sampler.set_interval(interval_ms)
            self._interval_ms = interval_ms

    def _send(self, visitor: Visitor) -> None:
        try:
            more = visitor.send()
        except OSError:
            self._leave(visitor)
            return
        if visitor.delivery.ended and not more:
            self._leave(visitor)
        elif more != visitor.more:
            visitor.wait_for_room(self._selector, more)

    def _leave(self, visitor: Visitor) -> None:
        if visitor in self._visitors:
            self._visitors.remove(visitor)
            visitor.close(self._selector)
        if visitor is self._head:
            self._head = None
            self._alone_since = time.monotonic()
            self._spilled_at = min(self._spilled_at, self._alone_since)


def serve(
    folder: Folder, listener: socket.socket, make_probe: Callable[[], Probe], simulated: bool, limits: Limits
) -> None:
    """Be the agent of a folder, until the end."""
    name_process()
    signals = Signals((signal.SIGTERM,), ignored=(signal.SIGHUP, signal.SIGINT))
    server = Server(folder, listener, signals, limits)
    serving = threading.Thread(target=server.run, daemon=True)
    serving.start()
    failure = ""
    try:
        if limits.only_left:
            server.started.wait()
        else:
            probe = make_probe()
            run_until_stopped(
                probe,
                server.started,
                lambda: server.introduce(probe, simulated),
                server.put,
                reintroduce=lambda: server.reintroduce(probe),
                wanted=server.wanted,
            )
    except Exception as error:
        import traceback

        traceback.print_exc()
        failure = f"the agent failed: {type(error).__name__}: {error}"
    server.sampled(failure)
    serving.join()
    server.finish()
    remove_forgotten([folder.top])
