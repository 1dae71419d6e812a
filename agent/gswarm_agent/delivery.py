"""Delivers a spool to one recorder: decodes its messages and encodes the replies and frames. Without I/O."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from gswarm_agent.frame import ClockExchange, Hello
from gswarm_agent.spool import Record, Spool
from gswarm_agent.wire import MAGIC, Bye, Decoder, Message, Ping, Pong, Start, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Deque, Iterator, List, Optional

_BATCH_BYTES = 256 * 1024


class Delivery:
    """Sends a recorder the frames that it lacks: of former lives, oldest first, then of this one.

    ``wall_ns`` is the clock of this life. Pongs overtake frames. ``ended`` is set once the bye is taken.
    A spool in memory forgets frames when they are sent, because no other connection will follow.
    """

    def __init__(self, spool: Spool, wall_ns: Callable[[], int]) -> None:
        self._spool = spool
        self._wall_ns = wall_ns
        self._decoder = Decoder()
        self._replies: Deque[Callable[[], Message]] = deque()
        self._start: Optional[Start] = None
        self._received = 0
        self._former: Deque[str] = deque()
        self._hello: Optional[Hello] = None
        self._hello_sent = False
        self._sent = 0
        self._magic_sent = False
        self._bye: Optional[Bye] = None
        self._parts: Deque[Callable[[], Optional[Message]]] = deque()
        self.ended = False

    def receive(self, data: bytes) -> Iterator[Message]:
        """Yield the recorder's messages, except pings, which get their pong. Raises WireError."""
        received = self._wall_ns()
        for message in self._decoder.feed(data):
            if isinstance(message, Ping):
                self._reply(message.sent, received)
            else:
                yield message

    def _reply(self, sent: int, received: int) -> None:
        self._replies.append(lambda: Pong(ClockExchange(sent, received, self._wall_ns())))

    def start(self, start: Start) -> None:
        """Start sending the frames that the recorder doesn't have."""
        self._start, self._received = start, self._wall_ns()
        for life, seq in start.resume:
            self._spool.acknowledge(life, seq)
        self._former = deque(self._spool.former_lives())
        # Hellos of former lives have no clock, and the recorder needs it before their frames.
        if self._former:
            self._reply(start.sent, self._received)

    @property
    def started(self) -> bool:
        """Whether the recorder has sent its start."""
        return self._start is not None

    def introduce(self, hello: Hello) -> None:
        """Send the hello of this life, with the clock the first time."""
        self._hello = hello
        if self._hello_sent and not self._former:
            self._replies.append(lambda: hello)

    def add(self, message: Message) -> None:
        """Send a message before the next frames."""
        self._replies.append(lambda: message)

    def add_part(self, read: Callable[[], Optional[Message]]) -> None:
        """Send what ``read`` returns, if anything, when no frame waits."""
        self._parts.append(read)

    @property
    def all_sent(self) -> bool:
        """Whether every frame has been sent."""
        rest = self._spool.read(self._hello.life, self._sent, 1) if self._hello is not None else []
        return not self._former and not rest

    def end(self, reason: str) -> None:
        """Send a bye next, and nothing after that."""
        self._bye = self._bye or Bye(reason)

    def take(self) -> bytes:
        """Return the next bytes to send; empty if nothing waits."""
        magic = b"" if self._magic_sent else MAGIC
        self._magic_sent = True
        if self.ended:
            return b""
        parts = [encode(self._replies.popleft()()) for _ in range(len(self._replies))]
        if self._bye is not None:
            self.ended = True
            parts.append(encode(self._bye))
        elif self._start is not None:
            parts += self._next_former() or self._next_of_this_life(self._start)
            while not parts and self._parts:
                part = self._parts.popleft()()
                parts += [] if part is None else [encode(part)]
        return magic + b"".join(parts)

    def _next_former(self) -> List[bytes]:
        while self._former:
            life = self._former[0]
            records = self._spool.read(life, self._sent, _BATCH_BYTES)
            if records:
                hello = [] if self._hello_sent else [self._spool.hello(life)]
                self._hello_sent = True
                return [*hello, *self._with_loss(life, records)]
            lost = self._spool.lost_at_the_end(life, self._sent)
            self._former.popleft()
            self._hello_sent, self._sent = False, 0
            if lost is not None:
                return [encode(lost)]
        return []

    def _with_loss(self, life: str, records: List[Record]) -> List[bytes]:
        """Return records as messages, after the loss before them."""
        lost = self._spool.lost_before(life, self._sent, records[0])
        self._sent = records[-1].seq
        if not self._spool.on_disk:
            self._spool.acknowledge(life, self._sent)
        return [*([] if lost is None else [encode(lost)]), *(record.data for record in records)]

    def _next_of_this_life(self, start: Start) -> List[bytes]:
        if self._hello is None:
            return []
        hello = []
        if not self._hello_sent:
            self._hello_sent = True
            clock = ClockExchange(start.sent, self._received, self._wall_ns())
            hello.append(encode(replace(self._hello, clock=clock)))
        records = self._spool.read(self._hello.life, self._sent, _BATCH_BYTES)
        return [*hello, *(self._with_loss(self._hello.life, records) if records else [])]
