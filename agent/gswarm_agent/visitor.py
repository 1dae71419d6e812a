"""Who comes to the agent's socket: heads that want frames, ``status``, and ``mark``."""

from __future__ import annotations

import os
import selectors
import socket
import time
from contextlib import suppress
from functools import partial

from gswarm_agent.calling import ASKING, MOST_REQUEST
from gswarm_agent.delivery import Delivery
from gswarm_agent.wire import QUERY_LIFE, clip_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional

STATUS = b"?"
"""All that a visitor sends which wants no frames; the answer is JSON, after the magic."""

_LAST_WORDS_S = 2.0
_CHUNK = 65536


class Visitor:
    """A connection: its socket, what was heard on it, and what isn't sent yet.

    A visitor may give a pipe with the first that it says: all that is said to it goes there then.
    """

    def __init__(self, connection: socket.socket, delivery: Delivery) -> None:
        self.connection = connection
        self.delivery = delivery
        self.more = False
        self.leaves_at: Optional[float] = None
        self._heard = False
        self._pipe: Optional[int] = None
        self._write: Callable[[memoryview], int] = connection.send
        self._unsent = memoryview(b"")
        self._asks: Optional[bool] = None
        self._asked = b""

    def receive(self) -> bytes:
        """What it says now, empty at its end. Raises OSError."""
        if self._heard:
            return self.connection.recv(_CHUNK)
        data, given, _, _ = socket.recv_fds(self.connection, _CHUNK, 1)
        self._heard = True
        for pipe in given:
            self._pipe, self._write = pipe, partial(os.write, pipe)
            os.set_inheritable(pipe, False)
            os.set_blocking(pipe, False)
        return data

    def wait_for_room(self, selector: selectors.BaseSelector, more: bool) -> None:
        """Be woken when more can be written to it, where ``more`` waits, and only then."""
        self.more = more
        if self._pipe is None:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if more else 0)
            selector.modify(self.connection, events, selector.get_key(self.connection).data)
        elif more:
            selector.register(self._pipe, selectors.EVENT_WRITE, lambda: None)
        else:
            selector.unregister(self._pipe)

    def close(self, selector: selectors.BaseSelector) -> None:
        """Let go of it; of its pipe first, as it ends when its connection does."""
        selector.unregister(self.connection)
        if self._pipe is not None:
            if self.more:
                selector.unregister(self._pipe)
            os.close(self._pipe)
        self.connection.close()

    def hear(self, data: bytes) -> Optional[bytes]:
        """The whole question of a visitor that has one, empty until it is complete; None from a head.

        After ``QUERY_LIFE`` the visitor may turn out to be a head.
        """
        if self._asks is None and data == QUERY_LIFE:
            return QUERY_LIFE
        if self._asks is None:
            self._asks = data[:1] in (STATUS, ASKING)
        if not self._asks:
            return None
        self._asked += data
        whole = self._asked == STATUS or self._asked.endswith(b"\n") or len(self._asked) > MOST_REQUEST
        return self._asked if whole else b""

    def answer(self, text: str) -> bool:
        """Answer its question; whether there may be more to hear from it."""
        with suppress(OSError):
            if self._pipe is None:
                self.connection.sendall(text.encode())
            else:
                self._write(memoryview(text.encode()))  # few words, and nothing else is in the pipe
        return self._asks is None

    def end(self, reason: str) -> None:
        """Say bye, but don't wait long for somebody who doesn't listen."""
        self.delivery.end(clip_text(reason))
        if self.leaves_at is None:
            self.leaves_at = time.monotonic() + _LAST_WORDS_S

    def send(self) -> bool:
        """Send what can be sent; whether more waits. Raises OSError."""
        try:
            while True:
                if not self._unsent:
                    self._unsent = memoryview(self.delivery.take())
                    if not self._unsent:
                        return False
                self._unsent = self._unsent[self._write(self._unsent) :]
        except BlockingIOError:
            return True
