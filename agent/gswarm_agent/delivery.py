"""One head's connection to the agent, without I/O: what was heard on it, and what is to be sent next."""

from __future__ import annotations

from collections import deque

from gswarm_agent.frame import ClockExchange, Hello
from gswarm_agent.frozen import replace
from gswarm_agent.segments import Record
from gswarm_agent.spool import Spool
from gswarm_agent.wire import MAGIC, Bye, Decoder, Message, Ping, Pong, Start, encode
from gswarm_agent.wire_packing import Packer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Deque, Iterator, List, Optional

_AT_ONCE = 256 * 1024


class Delivery:
    """Sends a head that has started what it lacks: of former lives, oldest first, then of this one.

    ``wall_ns`` is the clock of this life. Answers to pings overtake frames.
    """

    def __init__(self, spool: Spool, wall_ns: Callable[[], int]) -> None:
        self._spool = spool
        self._wall_ns = wall_ns
        self._decoder = Decoder()
        self._packer = Packer()
        self._answers: Deque[Callable[[], Message]] = deque()
        self._start: Optional[Start] = None
        self._received = 0
        self._former: Deque[str] = deque()
        self._hello: Optional[Hello] = None
        self._introduced = False
        self._sent = 0
        self._greeted = False
        self._bye: Optional[Bye] = None
        self._ended = False

    def receive(self, data: bytes) -> Iterator[Message]:
        """What the head says, pings excepted, which are answered. Raises WireError."""
        received = self._wall_ns()
        for message in self._decoder.feed(data):
            if isinstance(message, Ping):
                self._answer(message.sent, received)
            else:
                yield message

    def _answer(self, sent: int, received: int) -> None:
        self._answers.append(lambda: Pong(ClockExchange(sent, received, self._wall_ns())))

    def start(self, start: Start) -> None:
        """Begin to send what the head doesn't have."""
        self._start, self._received = start, self._wall_ns()
        self._spool.resume(dict(start.resume))
        self._former = deque(self._spool.former_lives())
        if self._former:  # whose hellos have no clock, but the head wants to know the time before all frames
            self._answer(start.sent, self._received)

    @property
    def started(self) -> bool:
        """Whether the head has said what it wants."""
        return self._start is not None

    def introduce(self, hello: Hello) -> None:
        """This life has begun, or is to be introduced again as ``hello``, then without a clock."""
        self._hello = hello
        if self._introduced and not self._former:
            self._answers.append(lambda: hello)

    @property
    def all_sent(self) -> bool:
        """Whether the head has been sent all that there is; what it has on disk it knows itself."""
        rest = self._spool.read(self._hello.life, self._sent, 1) if self._hello is not None else []
        return not self._former and not rest

    def end(self, reason: str) -> None:
        """Say bye next, and nothing after that."""
        self._bye = self._bye or Bye(reason)

    @property
    def ended(self) -> bool:
        """Whether the bye has been taken."""
        return self._ended

    def take(self) -> bytes:
        """The next bytes to send; empty where there is nothing to say now."""
        magic = b"" if self._greeted else MAGIC
        self._greeted = True
        if self._ended:
            return b""
        parts = [encode(self._answers.popleft()()) for _ in range(len(self._answers))]
        if self._bye is not None:
            self._ended = True
            parts.append(encode(self._bye))
        elif self._start is not None:
            parts += self._next_former() or self._next_of_this_life(self._start)
        return magic + self._packer.pack(b"".join(parts)) if parts else magic

    def _next_former(self) -> List[bytes]:
        while self._former:
            life = self._former[0]
            records = self._spool.read(life, self._sent, _AT_ONCE)
            if records:
                hello = [] if self._introduced else [self._spool.hello(life)]
                self._introduced = True
                return [*hello, *self._sending(life, records)]
            lost = self._spool.lost_at_the_end(life, self._sent)
            self._former.popleft()
            self._introduced, self._sent = False, 0
            if lost is not None:
                return [encode(lost)]
        return []

    def _sending(self, life: str, records: List[Record]) -> List[bytes]:
        """Records that are sent now, after what is lost before them."""
        lost = self._spool.lost_before(life, self._sent, records[0])
        self._sent = records[-1].seq
        return [*([] if lost is None else [encode(lost)]), *(record.data for record in records)]

    def _next_of_this_life(self, start: Start) -> List[bytes]:
        if self._hello is None:
            return []
        hello = []
        if not self._introduced:
            self._introduced = True
            clock = ClockExchange(start.sent, self._received, self._wall_ns())
            hello.append(encode(replace(self._hello, clock=clock)))
        records = self._spool.read(self._hello.life, self._sent, _AT_ONCE)
        return [*hello, *(self._sending(self._hello.life, records) if records else [])]
