"""A stream: joins standard input and output to a sampler for as long as the head stays connected.

Three threads, so that nothing waits for anything else: the main one samples, one reads and answers the head,
one writes. A head that reads slowly costs memory up to a bound and then the oldest frames, never a tick.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections import deque

from gswarm_agent.frame import ClockExchange, Frame, Hello
from gswarm_agent.frozen import replace
from gswarm_agent.hello import make_hello
from gswarm_agent.process import Signals, name_process, protect_standard_streams
from gswarm_agent.sampler import Sampler, SystemWatch, clamp_interval, run_until_stopped
from gswarm_agent.wire import (
    ENDED_BY,
    MAGIC,
    Bye,
    Decoder,
    Lost,
    Message,
    Ping,
    Pong,
    SetInterval,
    Start,
    Stop,
    clip_text,
    encode,
)
from gswarm_agent.wire_packing import Packer
from gswarm_agent.wire_values import WireError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Deque, List, Optional

    from gswarm_agent.probes.base import Probe
    from gswarm_agent.sampler import Watch

MOST_WAITING = 600
UNREAD = "the node sent more than was read"
_BATCH = 64
_LAST_WORDS_S = 2.0
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class Outbox:
    """What waits to be written: answers first, then frames in order, the bye last. Safe between threads.

    At most ``most_waiting`` frames of the ``life`` are kept. When there are more the oldest go, which is said
    before the next frame that is written.
    """

    def __init__(self, most_waiting: int = MOST_WAITING) -> None:
        self.life = ""
        self._most_waiting = most_waiting
        self._changed = threading.Condition()
        self._answers: Deque[Callable[[], Message]] = deque()
        self._frames: Deque[Frame] = deque()
        self._dropped = 0
        self._bye: Optional[Bye] = None
        self._closed = False

    def put_answer(self, make: Callable[[], Message]) -> None:
        """Send what ``make`` returns, ahead of waiting frames; it is called just before it is written."""
        with self._changed:
            self._answers.append(make)
            self._changed.notify()

    def put_frame(self, frame: Frame) -> None:
        """Send a frame, or drop the oldest that waits."""
        with self._changed:
            if len(self._frames) >= self._most_waiting:
                self._frames.popleft()
                self._dropped += 1
            self._frames.append(frame)
            self._changed.notify()

    def close(self, bye: Bye) -> None:
        """Send what waits, then ``bye``, then nothing more."""
        with self._changed:
            self._bye = self._bye or bye
            self._changed.notify()

    @property
    def closed(self) -> bool:
        """Whether the bye has been taken."""
        return self._closed

    def wait(self) -> None:
        """Return when there is something to take."""
        with self._changed:
            while not (self._answers or self._frames or self._bye):
                self._changed.wait()

    def take(self) -> bytes:
        """The next bytes to write, several messages at once; empty when nothing waits."""
        with self._changed:
            answers = [self._answers.popleft() for _ in range(len(self._answers))]
            frames = [self._frames.popleft() for _ in range(min(_BATCH, len(self._frames)))]
            dropped = self._dropped
            if frames:
                self._dropped = 0
            bye = None if self._frames else self._bye
            self._closed = bye is not None
        lost: List[Message] = []
        if dropped and frames:
            lost = [Lost(self.life, frames[0].seq - 1, frames[0].ts_ns, UNREAD)]
        messages = [make() for make in answers] + lost + list(frames) + ([bye] if bye else [])
        return b"".join(map(encode, messages))


class Conversation:
    """The agent's side of one stream, without I/O: takes the head's messages, fills the outbox.

    ``receive`` may run in another thread than the rest. ``started`` is set by Start and by any end.
    """

    def __init__(self, outbox: Outbox, watch: Optional[Watch] = None) -> None:
        self.outbox = outbox
        self.started = threading.Event()
        self.ended: Optional[str] = None
        self._watch = watch or SystemWatch()
        self._wall_ns = self._watch.wall_ns
        self._decoder = Decoder()
        self._start: Optional[Start] = None
        self._start_received = 0
        self._interval_ms = 0
        self._sampler: Optional[Sampler] = None
        self._hello: Optional[Hello] = None
        self._lock = threading.Lock()

    def receive(self, data: bytes) -> None:
        """Act on bytes from the head; no bytes mean that it is gone."""
        if not data:
            self.end("the head closed the connection")
            return
        received = self._wall_ns()
        try:
            for message in self._decoder.feed(data):
                self._handle(message, received)
        except WireError as error:
            self.end(f"the head sent something unexpected: {error}")

    def end(self, reason: str) -> None:
        """Stop sampling; ``reason`` becomes the bye."""
        with self._lock:
            self.ended = self.ended or reason
            if self._sampler:
                self._sampler.stop()
        self.started.set()

    def introduce(self, probe: Probe, simulated: bool) -> Optional[Sampler]:
        """Say hello to the head that started; the sampler to run, or None where the end came first."""
        facts = probe.facts()
        with self._lock:
            start = self._start
            if start is None or self.ended is not None:
                return None
            interval_ms = clamp_interval(self._interval_ms)
            self._sampler = Sampler(probe, interval_ms, self._watch)
        hello = make_hello(facts, interval_ms, simulated)
        self.outbox.life = hello.life
        self.outbox.put_answer(lambda: replace(hello, clock=self._clock(start.sent, self._start_received)))
        self._hello = hello
        return self._sampler

    def reintroduce(self, probe: Probe) -> None:
        """Say hello again, in the same life, if other things can't be measured than was said before."""
        _, _, capabilities = probe.facts()
        if self._hello is None or capabilities == self._hello.capabilities:
            return
        interval_ms = clamp_interval(self._interval_ms)
        hello = self._hello = replace(self._hello, capabilities=capabilities, interval_ms=interval_ms)
        self.outbox.put_answer(lambda: hello)

    def _clock(self, sent: int, received: int) -> ClockExchange:
        return ClockExchange(sent=sent, received=received, answered=self._wall_ns())

    def _handle(self, message: Message, received: int) -> None:
        if isinstance(message, Ping):
            sent = message.sent
            self.outbox.put_answer(lambda: Pong(self._clock(sent, received)))
        elif isinstance(message, Start):
            with self._lock:
                self._start, self._start_received = message, received
                self._interval_ms = message.interval_ms
            self.started.set()
        elif isinstance(message, SetInterval):
            with self._lock:
                self._interval_ms = message.interval_ms
                if self._sampler:
                    self._sampler.set_interval(message.interval_ms)
        elif isinstance(message, Stop):
            self.end("asked to stop")


def stream(make_probe: Callable[[], Probe], simulated: bool = False) -> int:
    """Serve the head on standard input and output until it, or a signal, ends this. Returns an exit status.

    ``make_probe`` is called after the magic is out, while the head's answer is on its way.
    """
    name_process()
    signals = Signals(_ENDING_SIGNALS)
    wire_in, wire_out = protect_standard_streams()
    try:
        os.write(wire_out, MAGIC)
    except OSError:
        return 0
    outbox = Outbox()
    conversation = Conversation(outbox)
    writer = threading.Thread(target=_write, args=(outbox, conversation, wire_out), daemon=True)
    writer.start()
    threading.Thread(target=_read, args=(conversation, wire_in, signals), daemon=True).start()
    status = 0
    try:
        probe = make_probe()
        run_until_stopped(
            probe,
            conversation.started,
            lambda: conversation.introduce(probe, simulated),
            outbox.put_frame,
            reintroduce=lambda: conversation.reintroduce(probe),
        )
    except Exception as error:  # whatever it is, the head is told in a sentence
        conversation.end(clip_text(f"the agent failed: {type(error).__name__}: {error}"))
        status = 1
    outbox.close(Bye(conversation.ended or "nothing is left to do"))
    writer.join(_LAST_WORDS_S)
    return status


def _read(conversation: Conversation, wire_in: int, signals: Signals) -> None:
    while conversation.ended is None:
        ready, _, _ = select.select([wire_in, signals.reading], [], [])
        for number in signals.take():
            conversation.end(f"{ENDED_BY}{signal.Signals(number).name}")
            return
        if wire_in not in ready:
            continue
        try:
            data = os.read(wire_in, 65536)
        except OSError:
            data = b""
        conversation.receive(data)


def _write(outbox: Outbox, conversation: Conversation, wire_out: int) -> None:
    packer = Packer()
    try:
        while not outbox.closed:
            outbox.wait()
            try:
                data = memoryview(packer.pack(outbox.take()))
            except WireError as error:
                conversation.end(f"the agent failed: {error}")
                continue
            while data:
                data = data[os.write(wire_out, data) :]
    except OSError:
        conversation.end("the head is gone")
