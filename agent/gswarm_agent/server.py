"""The agent: samples until the recording ends, keeps the frames in its spool, and serves its heads.

Of a recording (``serve``), the agent outlives its connections. Heads connect over a unix socket in the
recording's folder; the newest that starts replaces the one before. Without a head the agent continues, and
its frames wait in the spool, also on disk, until a head connects, the linger time is over, or the job ends.

Without a recording (``stream``), it serves one head on its standard streams, keeps frames in memory only, and
ends with that connection.
"""

from __future__ import annotations

import math
import os
import selectors
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace

from gswarm_agent import __version__, trace, wire
from gswarm_agent.attach import STATUS, is_own
from gswarm_agent.connection import AgentConnection
from gswarm_agent.delivery import Delivery
from gswarm_agent.folder import SOCKET, Folder, NoFolder
from gswarm_agent.frame import WARNING, Hello, Note
from gswarm_agent.mark import MarkError, Marks, read_request
from gswarm_agent.metrics import DEFAULT_GROUPS, known_groups
from gswarm_agent.sampler import Sampler, SystemWatch, clamp_interval
from gswarm_agent.spool import MIB, Spool
from gswarm_agent.wire_payload import MAX_LINKS, WireError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

    from gswarm_agent.asking.asked_step import AskedStep
    from gswarm_agent.kineto import TraceRun
    from gswarm_agent.probes.base import Probe
    from gswarm_agent.wire import Answer, TraceReport

STOPPED = "asked to stop"
SPOOL_MIB = 256.0
STREAM_MEMORY_MIB = 1.0
"""Frames that a recorder may leave unread without a recording: about ten minutes of eight GPUs at 1 Hz."""
STOP_S = 10.0
SIGNAL_S = 3.0
SPILL_S = 5.0
"""How long frames wait in memory for the recorder's acknowledgement before they go to the node's disk."""
_STEP_NS = 50_000_000
"""A smaller difference may come from waiting between two clocks; ntpd sets a clock by 128 ms at least."""
_START_S = 60.0
_TICK_S = 1.0


def name_process() -> None:
    """Appear as gswarm-agent in ps and top, whatever the interpreter's name is."""
    with suppress(OSError), open("/proc/self/comm", "w") as comm:  # noqa: PTH123  # pathlib is slow to import
        comm.write("gswarm-agent")


def protect_standard_streams() -> Tuple[int, int]:
    """Return descriptors for the wire alone; other prints go to stderr and can't corrupt the wire."""
    wire_in, wire_out = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return wire_in, wire_out


def make_hello(probe: Probe, interval_ms: int, life: str, obstacles: Mapping[str, str]) -> Hello:
    """Return the hello of a life; ``obstacles`` are capabilities beside those of the probe."""
    host, gpus, capabilities = probe.facts()
    return Hello(
        agent_version=__version__,
        life=life,
        interval_ms=interval_ms,
        simulated=probe.simulated,
        host=host,
        gpus=gpus,
        capabilities={**capabilities, **obstacles},
        links=probe.links()[:MAX_LINKS],
    )


class Server:
    """The agent of one spool: samples a probe and serves recorders, in one thread.

    ``run`` is the whole agent. Many servers may share a selector instead: then ``handle_due`` is called after
    each event and at ``due_ns``. Without ``make_probe`` nothing is measured. With a spool in memory only, the
    server ends with its first connection.
    """

    def __init__(
        self,
        spool: Spool,
        selector: selectors.BaseSelector,
        make_probe: Optional[Callable[[], Probe]] = None,
        *,
        linger_s: float = math.inf,
    ) -> None:
        self.watch = SystemWatch()
        self.obstacles: Dict[str, str] = {}  # beside the probe's capabilities
        # These environment variables tell the processes that the recording started from others.
        self.job: Dict[str, str] = {}
        self.ending = ""  # the reason, once the sampling has to end
        self._spool = spool
        self._selector = selector
        self._make_probe = make_probe
        self._linger_s = linger_s
        self._started = False
        self._probe: Optional[Probe] = None
        self._sampler: Optional[Sampler] = None
        self._hello: Optional[Hello] = None
        self._interval_ms = 0
        self._step_ns = 0
        self._groups = DEFAULT_GROUPS
        self._marks = Marks()
        self._spilled = False
        self._listening: Optional[Tuple[Folder, socket.socket]] = None
        self._connections: List[AgentConnection] = []
        self._head: Optional[AgentConnection] = None
        self._trace: Optional[TraceRun] = None
        self._asked: List[AskedStep] = []
        self._ends_by = 0.0
        self._job_ends = math.inf
        self._headless_since = self._spilled_at = time.monotonic()

    def listen(self, folder: Folder, listener: socket.socket) -> None:
        """Accept connections on a folder's socket, which is removed at the end."""
        self._listening = folder, listener
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))

    def connect(self, reading: int, writing: int) -> None:
        """Serve a recorder on two descriptors, which may be the same."""
        os.set_blocking(writing, False)
        delivery = Delivery(self._spool, self.watch.wall_ns)
        connection = AgentConnection(delivery, reading, writing, None)
        self._add(connection)
        self._send(connection)

    def end_on(self, *numbers: signal.Signals) -> None:
        """End within a second once one of these signals has arrived."""
        for number in numbers:
            signal.signal(number, self._take_signal)

    def _take_signal(self, number: int, _frame: object) -> None:
        self._end(f"{wire.ENDED_BY}{signal.Signals(number).name}", SIGNAL_S)

    def run(self) -> int:
        """Sample and serve until the end, then close everything. Returns an exit status."""
        status = 0
        while True:
            try:
                if self._make_probe is not None and self._probe is None and not self.ending:
                    self._probe = self._make_probe()  # at once: opening NVML takes longer than a head's start
                while not self.is_over():
                    wait_s = max(0.0, (self.due_ns - time.monotonic_ns()) / 1e9)
                    for key, _ in self._selector.select(wait_s):
                        key.data()
                    self.handle_due()
                break
            except Exception as error:
                import traceback

                traceback.print_exc()
                self._stop_sampling()
                self._end(f"the agent failed: {type(error).__name__}: {error}", SIGNAL_S)
                if status:  # the same failure, while the last frames were sent
                    break
                status = 1
        self.close()
        return status

    @property
    def due_ns(self) -> int:
        """Monotonic time at which ``handle_due`` has to be called, in nanoseconds."""
        tick_s = _TICK_S if self._trace is None else min(_TICK_S, self._trace.tick_s)
        due = time.monotonic_ns() + round(tick_s * 1e9)
        return due if self._sampler is None else min(due, self._sampler.due)

    def handle_due(self) -> None:
        """Take a sample if it is due, check deadlines, and send as much as the connections take."""
        self._check_deadlines()
        if self.ending:
            self._stop_sampling()
        elif self._sampler is not None:
            if self._sampler.due <= time.monotonic_ns():
                self._sample(self._sampler)
        elif self._started and self._make_probe is not None:
            self._introduce(self._make_probe)
        if self._trace is not None:
            self._trace.handle_due()
        for step in self._asked:
            step.handle_due()
        self._asked = [step for step in self._asked if not step.done]
        for connection in list(self._connections):
            self._send(connection)

    def _introduce(self, make_probe: Callable[[], Probe]) -> None:
        """Begin a new life; its first sample is due at once, after the hello was sent."""
        if self._probe is None:
            self._probe = make_probe()
        self._sampler = Sampler(self._probe, self._interval_ms, self.watch)
        if self._groups != DEFAULT_GROUPS:
            self._sampler.set_metrics(self._groups)
        self._hello = make_hello(self._probe, self._interval_ms, os.urandom(8).hex(), self.obstacles)
        self._step_ns = 0
        self._spool.begin(self._hello)
        self._introduce_to_head()

    def _sample(self, sampler: Sampler) -> None:
        """Take a sample; send the hello again, in the same life, if metrics or NVLinks have come or gone."""
        if abs((step_ns := self.watch.step_ns()) - self._step_ns) > _STEP_NS and self._hello is not None:
            self._step_ns = step_ns
            message = f"this node's clock was set: {step_ns / 1e9:+.3f} s since the agent's start"
            detail = f'{{"step_s": {step_ns / 1e9:.6f}, "life": "{self._hello.life}"}}'
            self._marks.add_note(Note("clock", WARNING, message, ts_ns=self.watch.wall_ns(), detail=detail))
        frame = sampler.take()
        self._spool.put(self._marks.put_on(frame))
        if frame.notes and self._probe is not None and self._hello is not None:
            hello = make_hello(self._probe, self._interval_ms, self._hello.life, self.obstacles)
            if hello != self._hello:
                self._hello = hello
                self._spool.change(hello)
                self._introduce_to_head()

    def _stop_sampling(self) -> None:
        """Take the frames that waiting marks or a request for energy need, and close the probe."""
        sampler, self._sampler = self._sampler, None
        probe, self._probe = self._probe, None
        try:
            if sampler is not None and probe is not None:
                probe.patient = sampler.energy_requested
                for _ in range(max(self._marks.frames_needed, sampler.energy_requested)):
                    self._spool.put(self._marks.put_on(sampler.take()))
        finally:
            if probe is not None:
                probe.close()

    def is_over(self) -> bool:
        """Return whether the server has ended; sends the bye when all else is done."""
        if not self.ending:
            return False
        self._stop_sampling()
        if not self._spilled and self.ending != STOPPED:
            self._spilled = True
            self._spool.spill()
        if self._head is not None and (self._spool.empty or time.monotonic() >= self._ends_by):
            left = self._spool.on_disk and not self._head.delivery.all_sent
            self._head.end(self.ending + (wire.FRAMES_REMAIN if left else ""))
            self._send(self._head)
        return self._head is None

    def close(self) -> None:
        """Close the listening socket and all connections, remove traces, and end what asks the job."""
        self._end_trace()
        for step in self._asked:
            step.end("the agent ended")
        if self._listening is not None:
            folder, listener = self._listening
            folder.unlink(SOCKET)
            listener.close()
        for connection in list(self._connections):
            self._drop(connection)

    def _end(self, reason: str, patience_s: float) -> None:
        """Stop sampling; then wait up to this many seconds for the recorder's acknowledgements."""
        if not self.ending:
            self.ending = wire.clip_text(reason)
            self._ends_by = time.monotonic() + patience_s

    def _introduce_to_head(self) -> None:
        if self._head is not None and self._hello is not None:
            self._head.delivery.introduce(replace(self._hello, interval_ms=self._interval_ms))

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        for connection in list(self._connections):
            if connection.closes_at is not None and connection.closes_at <= now:
                self._drop(connection)
        if now >= self._job_ends:
            if self._sampler is not None:
                self._sampler.energy_requested = True
            self._end(wire.JOB_ENDED, SIGNAL_S)
        if self.ending:
            return
        # A recorder that acknowledges nothing may be cut off, which isn't noticed for minutes.
        waited_s = self._spool.waited_ns(self.watch.wall_ns()) / 1e9
        if waited_s > SPILL_S or (self._head is None and now - self._spilled_at >= SPILL_S):
            self._spilled_at = now
            self._spool.spill()
        if self._head is not None:
            return
        longest = self._linger_s if self._hello else min(self._linger_s, _START_S)
        if now - self._headless_since > longest:
            self._end(f"no recorder connected for {longest:.0f} s", 0)

    def _accept(self, listener: socket.socket) -> None:
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        if not is_own(peer):
            peer.close()
            return
        peer.setblocking(False)
        delivery = Delivery(self._spool, self.watch.wall_ns)
        self._add(AgentConnection(delivery, peer.fileno(), peer.fileno(), peer))

    def _add(self, connection: AgentConnection) -> None:
        self._connections.append(connection)
        self._selector.register(connection.reading, selectors.EVENT_READ, lambda: self._receive(connection))

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
            if request:
                connection.reply(self._reply(request))
                self._drop(connection)
        else:
            try:
                for message in connection.delivery.receive(data):
                    self._handle(connection, message)
            except WireError as error:
                connection.end(f"the recorder sent something unexpected: {error}")
            self._started = self._started or self._head is not None

    def _reply(self, request: bytes) -> str:
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

    def _handle(self, connection: AgentConnection, message: wire.Message) -> None:
        if isinstance(message, wire.Start) and not connection.delivery.started:
            if self._head is not None and self._head is not connection:
                self._head.end(wire.TAKEN_OVER)
            self._head = connection
            connection.delivery.start(message)
            self._configure(message.interval_ms, message.metrics)
            self._introduce_to_head()
            if self._trace is not None:
                self._trace.repeat_reports()
            if self._make_probe is None:
                self._end(wire.SENT_ALL, STOP_S)
        elif connection is not self._head:
            return
        elif isinstance(message, wire.Ack):
            self._spool.acknowledge(message.life, message.seq)
            if self.ending in (STOPPED, wire.SENT_ALL):
                self._ends_by = time.monotonic() + STOP_S
        elif isinstance(message, wire.Configure):
            self._configure(message.interval_ms, message.metrics)
        elif isinstance(message, wire.ReadEnergy):
            if self._sampler is not None:
                self._sampler.energy_requested = True
        elif isinstance(message, wire.JobEnds) and self._make_probe is not None:
            left_s = math.inf if message.at is None else (message.at - message.sent) / 1e9
            self._job_ends = time.monotonic() + left_s
        elif isinstance(message, wire.Stop):
            self._end(STOPPED, STOP_S)
        elif isinstance(message, wire.Ask):
            from gswarm_agent.asking.asked_step import MOST_AT_ONCE, AskedStep  # rarely needed

            if len(self._asked) < MOST_AT_ONCE:
                self._asked.append(AskedStep(message, self._selector, self._send_answer))
        else:
            self._handle_trace(connection, message)

    def _handle_trace(self, connection: AgentConnection, message: wire.Message) -> None:
        trace = self._trace
        if isinstance(message, wire.RequestTrace):
            if trace is not None and trace.request.token == message.token:
                return  # repeated after a reconnect
            from gswarm_agent.kineto import TraceRun  # rarely needed

            self._end_trace()
            # Processes start their traces by the wall clock, which may have been set.
            message = replace(message, start_ns=message.start_ns + self.watch.step_ns())
            self._trace = TraceRun(message, self._selector, self._report_trace, self.job)
        elif trace is None:
            return
        elif isinstance(message, wire.FetchTrace) and message.token == trace.request.token:
            pid, offset = message.pid, message.offset
            connection.delivery.add_part(lambda: trace.part(pid, offset))
        elif isinstance(message, wire.EndTrace) and message.token == trace.request.token:
            self._end_trace()

    def _report_trace(self, report: TraceReport) -> None:
        if self._head is not None:
            self._head.delivery.add(report)

    def _send_answer(self, answer: Answer) -> None:
        if self._head is not None:
            self._head.delivery.add_part(lambda: answer)

    def _end_trace(self) -> None:
        if self._trace is not None:
            self._trace.close()
            self._trace = None

    def _configure(self, interval_ms: int, names: Sequence[str]) -> None:
        interval_ms, groups = clamp_interval(interval_ms), known_groups(names)
        if self._sampler and interval_ms != self._interval_ms:
            self._sampler.set_interval(interval_ms)
        if self._sampler and groups != self._groups:
            self._sampler.set_metrics(groups)
        self._interval_ms, self._groups = interval_ms, groups

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
                self._end("the recorder closed the connection", 0)
            elif not (self._started or self._connections):
                self._end("the recorder disconnected before the start", 0)
        if connection is self._head:
            self._head = None
            self._headless_since = time.monotonic()
            self._spilled_at = min(self._spilled_at, self._headless_since)


def serve(
    folder: Folder,
    listener: socket.socket,
    make_probe: Optional[Callable[[], Probe]],
    *,
    linger: float = 86_400.0,
    memory_mib: float = 16.0,
    spool_mib: float = SPOOL_MIB,
    armed: bool = False,
) -> None:
    """Run the agent of a recording's folder until it ends.

    It continues ``linger`` seconds without a head. Without ``make_probe`` nothing is measured: the first head
    gets the frames that earlier lives left. If the job is ``armed``, this node gets what requests for traces
    need.
    """
    name_process()
    recording = folder.name.partition("@")[0]
    for ignored in (signal.SIGHUP, signal.SIGINT):
        signal.signal(ignored, signal.SIG_IGN)
    spool = Spool(folder, round(memory_mib * MIB), round(spool_mib * MIB))
    with selectors.PollSelector() as selector:
        server = Server(spool, selector, make_probe, linger_s=linger)
        server.end_on(signal.SIGTERM)
        server.listen(folder, listener)
        server.job = {"KINETO_IPC_SOCKET_DIR": trace.socket_folder(recording)}
        if armed:
            server.obstacles = trace.obstacles(recording)
        server.run()
    if spool.empty:
        folder.remove()
    else:
        spool.spill()
    trace.remove_places(recording)


def stream(make_probe: Callable[[], Probe], memory_mib: float = STREAM_MEMORY_MIB) -> int:
    """Serve the head on standard streams until it disconnects or a signal arrives; return an exit status."""
    name_process()
    wire_in, wire_out = protect_standard_streams()
    with selectors.PollSelector() as selector:
        server = Server(Spool(NoFolder(), round(memory_mib * MIB)), selector, make_probe)
        server.end_on(signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
        server.connect(wire_in, wire_out)
        return server.run()
