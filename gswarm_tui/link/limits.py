"""What an agent may tell on one connection: of its own and former lives, what is lost of them, its clock."""

from __future__ import annotations

from dataclasses import replace

from gswarm_agent.frame import Hello
from gswarm_agent.wire import Ping
from gswarm_agent.wire_values import WireError

MOST_FORMER = 64
"""Lives that a connection may tell of before the present one. What they left is on disk then, and isn't told
again on the next."""
MOST_HELLOS = 32
MOST_LOSSES = 1000


class Introductions:
    """Former lives come first, each once, then the present one, which may say hello again.

    ``hello`` and ``loss`` raise WireError where it goes on too long or makes no sense.
    """

    def __init__(self) -> None:
        self._lives: set[str] = set()
        self._hello: Hello | None = None
        self._hellos = 0
        self._losses = 0
        self._unanswered = 1  # the start, which an agent answers that has former lives to tell of

    def hello(self, hello: Hello, *, speaks: bool) -> None:
        """An agent said hello; ``speaks`` if that of the present life has been heard already."""
        if speaks and self._hello is not None:
            self._hellos += 1
            if not _same_agent(self._hello, hello):
                raise WireError("it said hello a second time, as another")
        elif hello.life in self._lives:
            raise WireError("it told of one life twice")
        self._hello = hello
        self._lives.add(hello.life)
        if len(self._lives) > MOST_FORMER + 1:
            raise WireError(f"it told of more than {MOST_FORMER} former lives")
        if self._hellos > MOST_HELLOS:
            raise WireError(f"it said hello more than {MOST_HELLOS} times")

    def loss(self) -> None:
        """It told that frames of a life never come."""
        self._losses += 1
        if self._losses > MOST_LOSSES:
            raise WireError(f"it told more than {MOST_LOSSES} times that frames are lost")

    def ping(self, now_ns: int) -> Ping:
        """What is asked of its clock at a time (Unix nanoseconds)."""
        self._unanswered += 1
        return Ping(now_ns)

    def pong(self) -> bool:
        """It told its clock: whether it was asked to; unasked, that would cost memory without end."""
        asked = self._unanswered > 0
        self._unanswered -= asked
        return asked


def _same_agent(before: Hello, now: Hello) -> bool:
    """Whether a hello that is said again differs only in what may change during an agent's life."""
    return now == replace(before, capabilities=now.capabilities, interval_ms=now.interval_ms, clock=now.clock)
