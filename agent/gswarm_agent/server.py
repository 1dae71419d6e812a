"""The agent: samples until the recording ends, keeps the frames in its spool, and serves its heads.

Two threads: the main one samples, the other one does everything else, except that the main one itself sends a
frame that the head takes at once: waking the other costs more.

Of a recording (``serve``), the agent outlives its connections. Heads connect over a unix socket in the
recording's folder; the newest that starts replaces the one before. Without a head the agent continues, and
its frames wait in the spool, also on disk, until a head connects, the linger time is over, or the job ends.

Without a recording (``stream``), it serves one head on its standard streams, keeps frames in memory only, and
ends with that connection.
"""

from __future__ import annotations

import gc
import math
import os
import selectors
import signal
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace

from gswarm_agent import __version__, trace
from gswarm_agent.connection import AgentConnection
from gswarm_agent.delivery import Delivery
from gswarm_agent.folder import (
    SOCKET,
    Folder,
    NoFolder,
    problems_of,
    remove_forgotten,
    top_below_home,
    tops,
)
from gswarm_agent.frame import WARNING, Frame, Hello, Note
from gswarm_agent.mark import MarkError, Marks, read_request
from gswarm_agent.metrics import DEFAULT_GROUPS, GPU_COLUMNS, HOST_COLUMNS, PROCESS_COLUMNS, known_groups
from gswarm_agent.requests import STATUS, is_own
from gswarm_agent.sampler import Sampler, SystemWatch, clamp_interval
from gswarm_agent.spool import MIB, Spool
from gswarm_agent.wire import (
    ENDED_BY,
    FRAMES_REMAIN,
    JOB_ENDED,
    QUERY_LIFE,
    SENT_ALL,
    TAKEN_OVER,
    Ack,
    EndTrace,
    FetchTrace,
    JobEnds,
    Message,
    RequestTrace,
    SetInterval,
    SetMetrics,
    Start,
    Stop,
    clip_text,
)
from gswarm_agent.wire_payload import MAX_LINKS, WireError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Callable, Deque, Dict, List, Optional, Sequence, Tuple, Union

    from gswarm_agent.kineto import TraceRun
    from gswarm_agent.probes.base import Probe
    from gswarm_agent.wire import TraceReport

STOPPED = "asked to stop"
STREAM_MEMORY_MIB = 1.0
"""Frames that a head may leave unread without a recording: about ten minutes of eight GPUs at 1 Hz."""
STOP_S = 10.0
SIGNAL_S = 3.0
SPILL_S = 5.0
"""How long frames wait in memory for the head's acknowledgement before they go to the node's disk."""
_START_S = 60.0
_TICK_S = 1.0


@dataclass(frozen=True)
class Limits:
    """How long to continue without a head, in seconds, and how much to keep, in MiB.

    With ``only_left`` nothing is measured: the first head gets the frames that earlier lives left. If the job
    is ``armed``, this node gets what requests for traces need.
    """

    linger: float = 86_400.0
    memory_mib: float = 16.0
    spool_mib: float = 256.0
    only_left: bool = False
    armed: bool = False


def name_process() -> None:
    """Appear as gswarm-agent in ps and top, whatever the interpreter's name is."""
    with suppress(OSError), open("/proc/self/comm", "w") as comm:  # noqa: PTH123  # pathlib is slow to import
        comm.write("gswarm-agent")


class Signals:
    """Signals that end the agent, as bytes on a descriptor: handlers that take locks may deadlock.

    ``reading`` becomes readable after a signal, or when another thread has called ``wake``.
    """

    def __init__(self, ending: Sequence[signal.Signals], ignored: Sequence[signal.Signals] = ()) -> None:
        self.reading, self._writing = os.pipe()
        os.set_blocking(self.reading, False)
        os.set_blocking(self._writing, False)
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        for number in ending:
            signal.signal(number, lambda _number, _frame: None)
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)

    def wake(self) -> None:
        """Make ``reading`` readable."""
        with suppress(BlockingIOError):
            os.write(self._writing, b"\0")

    def take(self) -> List[int]:
        """Return the signals since the last call."""
        try:
            return [number for number in os.read(self.reading, 4096) if number]
        except BlockingIOError:
            return []


def protect_standard_streams() -> Tuple[int, int]:
    """Return descriptors for the wire alone; other prints go to stderr and can't corrupt the wire."""
    wire_in, wire_out = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return wire_in, wire_out


def make_hello(probe: Probe, interval_ms: int) -> Hello:
    """Return the hello of a new life."""
    host, gpus, capabilities = probe.facts()
    return Hello(
        agent_version=__version__,
        life=os.urandom(8).hex(),
        interval_ms=interval_ms,
        simulated=probe.simulated,
        host=host,
        gpus=gpus,
        capabilities=capabilities,
        gpu_columns=GPU_COLUMNS,
        host_columns=HOST_COLUMNS,
        process_columns=PROCESS_COLUMNS,
        links=probe.links()[:MAX_LINKS],
    )


class Server:
    """The agent of one spool: serves heads in a second thread, and samples in the main one.

    ``run`` is the second thread. The main thread calls ``sample``, ``end_sampling`` and, when ``run`` has
    returned, ``finish``. Without ``threaded`` one thread runs many servers that share a selector: it awaits
    ``started``, gets a sampler from ``introduce``, puts its frames, and calls ``handle_due`` for ``run``.

    With a spool in memory only, the server ends with its first connection.
    """

    def __init__(
        self,
        spool: Spool,
        selector: selectors.BaseSelector,
        wake: Callable[[], None] = lambda: None,
        *,
        linger_s: float = math.inf,
        only_left: bool = False,
        threaded: bool = True,
    ) -> None:
        self.started = threading.Event()
        self.watch = SystemWatch()
        self.obstacles: Dict[str, str] = {}  # beside the probe's capabilities
        self._spool = spool
        self._selector = selector
        self._wake = wake
        self._linger_s = linger_s
        self._only_left = only_left
        self._lock = threading.Lock()
        # Guards spool, marks and connections: the second thread holds it, except while it waits.
        self._serving = threading.Lock()
        if threaded:
            self._serving.acquire()
        self._sampler: Optional[Sampler] = None
        self._introduced: Optional[Hello] = None
        self._interval_ms = 0
        self._groups = DEFAULT_GROUPS
        self.ending = ""  # the reason, once the sampling has to end
        self.inbox: Deque[Union[Hello, Frame]] = deque()
        self._marks = Marks()
        self._sampling = True
        self._spilled = False
        self._hello: Optional[Hello] = None
        self._listening: Optional[Tuple[Folder, socket.socket]] = None
        self._connections: List[AgentConnection] = []
        self._head: Optional[AgentConnection] = None
        self._trace: Optional[TraceRun] = None
        self._ends_by = 0.0
        self._job_ends = math.inf
        self._longest_wait_s = _TICK_S
        self._headless_since = self._spilled_at = time.monotonic()

    def report_place(self, folder: Folder) -> None:
        """Note on the first frame that unsent frames wait below the home folder, and why."""
        why = "; ".join(problems_of(tops()[:-1]))
        message = f"frames wait in {folder.path}, which may be on a shared disk" + (f": {why}" if why else "")
        self._marks.add_note(Note("notice", WARNING, message, ts_ns=self.watch.wall_ns()))

    # The main thread's side.

    def sample(self, probe: Probe) -> None:
        """Sample from a head's start until the end, then as often as waiting marks need. Closes the probe."""
        try:
            self.started.wait()
            sampler = self.introduce(probe)
            if sampler is None:
                return
            gc.freeze()  # these objects stay: searching them for garbage would delay a tick by 10 ms

            def deliver(frame: Frame) -> None:
                self.put(frame)
                if frame.notes:  # the capabilities may have changed
                    self.reintroduce(probe)

            sampler.run(deliver)
            for _ in range(self._marks.frames_needed):
                deliver(sampler.take())
        finally:
            probe.close()

    def introduce(self, probe: Probe) -> Optional[Sampler]:
        """Begin a new life; return the sampler to run, or None if the server is ending."""
        with self._lock:
            if self.ending:
                return None
            self._sampler = Sampler(probe, self._interval_ms, self.watch)
            if self._groups != DEFAULT_GROUPS:
                self._sampler.set_metrics(self._groups)
        hello = make_hello(probe, self._sampler.interval_ms)
        self._introduced = replace(hello, capabilities={**hello.capabilities, **self.obstacles})
        self.inbox.append(self._introduced)  # it goes with the first frame, or at the next tick
        return self._sampler

    def reintroduce(self, probe: Probe) -> None:
        """Send the hello again, in the same life, if metrics or NVLinks have come or gone."""
        _, _, capabilities = probe.facts()
        if (before := self._introduced) is not None:
            capabilities = {**capabilities, **self.obstacles}
            self._introduced = replace(before, capabilities=capabilities, links=probe.links()[:MAX_LINKS])
            if self._introduced != before:
                self._put(self._introduced)

    def put(self, frame: Frame) -> None:
        """Deliver a frame: at once to a head that has taken all before, else by the other thread."""
        if self._serving.acquire(blocking=False):
            try:
                if self._head is not None and not (self._head.has_unsent or self.inbox or self.ending):
                    self.inbox.append(frame)
                    self._store_inbox()
                    self._send(self._head)
                    return
            finally:
                self._serving.release()
        self._put(frame)

    def _put(self, message: Union[Hello, Frame]) -> None:
        self.inbox.append(message)
        self._wake()

    def end_sampling(self, failure: str = "") -> None:
        """End the sampling; ``failure`` is the reason if nobody requested it."""
        if failure:
            self._end(failure, SIGNAL_S)
        self._sampling = False
        self._wake()

    def finish(self, folder: Folder) -> None:
        """Write unacknowledged frames to disk, and remove the folder if there are none."""
        self._store_inbox()
        if self._spool.empty:
            folder.remove()
        else:
            self._spool.spill()

    # The second thread's side.

    def listen(self, folder: Folder, listener: socket.socket) -> None:
        """Accept connections on a folder's socket, which is removed at the end."""
        self._listening = folder, listener
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))

    def connect(self, reading: int, writing: int, *, compress: bool = True) -> None:
        """Serve a head on two descriptors, which may be the same."""
        os.set_blocking(writing, False)
        delivery = Delivery(self._spool, self.watch.wall_ns, compress=compress)
        connection = AgentConnection(delivery, reading, writing, None)
        self._add(connection)
        self._send(connection)

    def run(self, signals: Signals) -> None:
        """Serve until the end, then close everything. An unexpected error here ends the sampling too."""
        failure = "nothing is left to do"
        try:
            self._selector.register(
                signals.reading, selectors.EVENT_READ, lambda: self._take_signals(signals)
            )
            while not self.is_over():
                for key, _ in self._wait():
                    key.data()
                self.handle_due()
        except Exception as error:
            import traceback

            traceback.print_exc()
            failure = f"the agent failed: {type(error).__name__}: {error}"
            if self._head is not None:
                self._head.end(failure)
                self._send(self._head)
        finally:
            self._end(failure, 0)
            self.close()

    def _wait(self) -> List[Tuple[selectors.SelectorKey, int]]:
        """Wait for events or for the next deadline."""
        self._serving.release()
        try:
            return self._selector.select(self._longest_wait_s)
        finally:
            self._serving.acquire()

    def handle_due(self) -> None:
        """Take in new frames, check deadlines, and send as much as the connections take."""
        self._store_inbox()
        self._check_deadlines()
        if self._trace is not None:
            self._trace.handle_due()
            self._longest_wait_s = min(self._longest_wait_s, self._trace.tick_s)
            if self._trace.is_forgotten:
                self._end_trace()
        for connection in list(self._connections):
            self._send(connection)

    def is_over(self) -> bool:
        """Return whether the server has ended; sends the bye when all else is done."""
        if not self.ending or self._sampling or self.inbox:
            return False
        if not self._spilled and self.ending != STOPPED:
            self._spilled = True
            self._spool.spill()
        if self._head is not None and (self._spool.empty or time.monotonic() >= self._ends_by):
            left = self._spool.on_disk and not self._head.delivery.all_sent
            self._head.end(self.ending + (FRAMES_REMAIN if left else ""))
            self._send(self._head)
        return self._head is None

    def close(self) -> None:
        """Close the listening socket and all connections, and remove traces."""
        self._end_trace()
        if self._listening is not None:
            folder, listener = self._listening
            folder.unlink(SOCKET)
            listener.close()
        for connection in list(self._connections):
            self._drop(connection)

    def _end(self, reason: str, patience_s: float) -> None:
        """Stop sampling; then wait up to this many seconds for the head's acknowledgements."""
        with self._lock:
            if not self.ending:
                self.ending = clip_text(reason)
                self._ends_by = time.monotonic() + patience_s
            if self._sampler:
                self._sampler.stop()
        self.started.set()

    def _store_inbox(self) -> None:
        while self.inbox:
            message = self.inbox.popleft()
            if isinstance(message, Frame):
                self._spool.put(self._marks.put_on(message))
                continue
            if self._hello is None:
                self._spool.begin(message)
            else:
                self._spool.change(message)
            self._hello = message
            self._introduce_to_head()

    def _introduce_to_head(self) -> None:
        if self._head is not None and self._hello is not None:
            self._head.delivery.introduce(replace(self._hello, interval_ms=self._interval_ms))

    def _check_deadlines(self) -> None:
        now, self._longest_wait_s = time.monotonic(), _TICK_S
        closing = False
        for connection in list(self._connections):
            if connection.closes_at is not None:
                closing = True
                if connection.closes_at <= now:
                    self._drop(connection)
        if now >= self._job_ends:
            self._end(JOB_ENDED, SIGNAL_S)
        if self.ending:
            return
        # A head that acknowledges nothing may be cut off, which isn't noticed for minutes.
        waited_s = self._spool.waited_ns(self.watch.wall_ns()) / 1e9
        if waited_s > SPILL_S or (self._head is None and now - self._spilled_at >= SPILL_S):
            self._spilled_at = now
            self._spool.spill()
        if self._head is not None:
            if self._hello is not None and not closing:
                self._longest_wait_s = max(_TICK_S, min(SPILL_S - waited_s, self._job_ends - now))
            return
        longest = self._linger_s if self._hello else min(self._linger_s, _START_S)
        if now - self._headless_since > longest:
            self._end(f"no head connected for {longest:.0f} s", 0)

    def _accept(self, listener: socket.socket) -> None:
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        if not is_own(peer):
            peer.close()
            return
        self._add(AgentConnection.of_socket(Delivery(self._spool, self.watch.wall_ns), peer))

    def _add(self, connection: AgentConnection) -> None:
        self._connections.append(connection)
        self._selector.register(connection.reading, selectors.EVENT_READ, lambda: self._receive(connection))

    def _take_signals(self, signals: Signals) -> None:
        for number in signals.take():
            self._end(f"{ENDED_BY}{signal.Signals(number).name}", SIGNAL_S)

    def _receive(self, connection: AgentConnection) -> None:
        try:
            data = connection.receive()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(connection)
        elif (request := connection.request(data)) is not None:
            if request and not connection.reply(self._reply(request)):
                self._drop(connection)
        else:
            try:
                for message in connection.delivery.receive(data):
                    self._handle(connection, message)
            except WireError as error:
                connection.end(f"the head sent something unexpected: {error}")
            if self._head is not None:
                self.started.set()

    def _reply(self, request: bytes) -> str:
        if request == QUERY_LIFE:
            return f"{self._hello.life if self._hello else ''}\n"
        import json

        if request == STATUS:
            return json.dumps(self._spool.waiting())
        try:
            if self._hello is None or self.ending:
                raise MarkError("its agent isn't sampling")
            self._marks.add(*read_request(request), self.watch.wall_ns())
        except MarkError as error:
            return json.dumps({"error": str(error)})
        return "{}"

    def _handle(self, connection: AgentConnection, message: Message) -> None:
        if isinstance(message, Start) and not connection.delivery.started:
            if self._head is not None and self._head is not connection:
                self._head.end(TAKEN_OVER)
            self._head = connection
            connection.delivery.start(message)
            self._set_interval(message.interval_ms)
            self._set_metrics(message.metrics)
            self._introduce_to_head()
            if self._trace is not None:
                self._trace.repeat_reports()
            if self._only_left:
                self._end(SENT_ALL, STOP_S)
        elif connection is not self._head:
            return
        elif isinstance(message, Ack):
            self._spool.acknowledge(message.life, message.seq)
            if self.ending in (STOPPED, SENT_ALL):
                self._ends_by = time.monotonic() + STOP_S
        elif isinstance(message, SetInterval):
            self._set_interval(message.interval_ms)
        elif isinstance(message, SetMetrics):
            self._set_metrics(message.groups)
        elif isinstance(message, JobEnds) and not self._only_left:
            left_s = math.inf if message.at is None else (message.at - message.sent) / 1e9
            self._job_ends = time.monotonic() + left_s
        elif isinstance(message, Stop):
            self._end(STOPPED, STOP_S)
        else:
            self._handle_trace(connection, message)

    def _handle_trace(self, connection: AgentConnection, message: Message) -> None:
        trace = self._trace
        if isinstance(message, RequestTrace):
            if trace is not None and trace.request.token == message.token:
                return  # repeated after a reconnect
            from gswarm_agent.kineto import TraceRun  # rarely needed

            self._end_trace()
            self._trace = TraceRun(message, self._selector, self._report_trace)
        elif trace is None:
            return
        elif isinstance(message, FetchTrace) and message.token == trace.request.token:
            pid, offset = message.pid, message.offset
            connection.delivery.add_part(lambda: trace.part(pid, offset))
        elif isinstance(message, EndTrace) and message.token == trace.request.token:
            self._end_trace()

    def _report_trace(self, report: TraceReport) -> None:
        if self._head is not None:
            self._head.delivery.add(report)

    def _end_trace(self) -> None:
        if self._trace is not None:
            self._trace.close()
            self._trace = None

    def _set_interval(self, interval_ms: int) -> None:
        with self._lock:
            interval_ms = clamp_interval(interval_ms)
            if self._sampler and interval_ms != self._interval_ms:
                self._sampler.set_interval(interval_ms)
            self._interval_ms = interval_ms

    def _set_metrics(self, names: Sequence[str]) -> None:
        with self._lock:
            groups = known_groups(names)
            if self._sampler and groups != self._groups:
                self._sampler.set_metrics(groups)
            self._groups = groups

    def _send(self, connection: AgentConnection) -> None:
        try:
            unsent = connection.send()
        except OSError:
            self._drop(connection)
            return
        if connection.delivery.ended and not unsent:
            self._drop(connection)
        elif unsent != connection.has_unsent:
            connection.wait_for_room(self._selector, unsent)

    def _drop(self, connection: AgentConnection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            connection.close(self._selector)
            if not self._spool.on_disk:
                self._end("the head closed the connection", 0)
            elif not (self.started.is_set() or self._connections):
                self._end("the head disconnected before the start", 0)
        if connection is self._head:
            self._head = None
            self._headless_since = time.monotonic()
            self._spilled_at = min(self._spilled_at, self._headless_since)


def serve(folder: Folder, listener: socket.socket, make_probe: Callable[[], Probe], limits: Limits) -> None:
    """Run the agent of a recording's folder until it ends."""
    name_process()
    recording = folder.name.partition("@")[0]
    signals = Signals((signal.SIGTERM,), ignored=(signal.SIGHUP, signal.SIGINT))
    spool = Spool(folder, round(limits.memory_mib * MIB), round(limits.spool_mib * MIB))
    with selectors.PollSelector() as selector:
        server = Server(spool, selector, signals.wake, linger_s=limits.linger, only_left=limits.only_left)
        server.listen(folder, listener)
        if folder.top == top_below_home():
            server.report_place(folder)
        if limits.armed:
            server.obstacles = trace.obstacles(recording)
        _run(server, signals, None if limits.only_left else make_probe)
    server.finish(folder)
    remove_forgotten([folder.top])
    trace.remove_forgotten(recording)


def stream(make_probe: Callable[[], Probe], memory_mib: float = STREAM_MEMORY_MIB) -> int:
    """Serve the head on standard streams until it disconnects or a signal arrives; return an exit status.

    ``make_probe`` is called before the head's ``Start`` arrives, to save time.
    """
    name_process()
    signals = Signals((signal.SIGTERM, signal.SIGHUP, signal.SIGINT))
    wire_in, wire_out = protect_standard_streams()
    with selectors.PollSelector() as selector:
        server = Server(Spool(NoFolder(), round(memory_mib * MIB)), selector, signals.wake)
        server.connect(wire_in, wire_out)
        return _run(server, signals, make_probe)


def _run(server: Server, signals: Signals, make_probe: Optional[Callable[[], Probe]]) -> int:
    """Sample in this thread and serve in another, until the end. Returns an exit status."""
    serving = threading.Thread(target=server.run, args=(signals,), daemon=True)
    serving.start()
    failure = ""
    try:
        if make_probe is None:
            server.started.wait()
        else:
            server.sample(make_probe())
    except Exception as error:
        import traceback

        traceback.print_exc()
        failure = f"the agent failed: {type(error).__name__}: {error}"
    server.end_sampling(failure)
    serving.join()
    return 1 if failure else 0
