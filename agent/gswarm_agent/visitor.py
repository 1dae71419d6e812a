"""Who comes to the agent's socket: heads that want frames, ``status``, and ``mark``."""

from __future__ import annotations

import socket
import time
from contextlib import suppress

from gswarm_agent.calling import ASKING, MOST_REQUEST
from gswarm_agent.delivery import Delivery
from gswarm_agent.wire import WHO, clip_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

STATUS = b"?"
"""All that a visitor sends which wants no frames; the answer is JSON, after the magic."""

_LAST_WORDS_S = 2.0


class Visitor:
    """A connection: its socket, what was heard on it, and what isn't sent yet."""

    def __init__(self, connection: socket.socket, delivery: Delivery) -> None:
        self.connection = connection
        self.delivery = delivery
        self.more = False
        self.leaves_at: Optional[float] = None
        self._unsent = memoryview(b"")
        self._asks: Optional[bool] = None
        self._asked = b""

    def hear(self, data: bytes) -> Optional[bytes]:
        """The whole question of a visitor that has one, empty until it is complete; None from a head.

        After ``WHO`` the visitor may turn out to be a head.
        """
        if self._asks is None and data == WHO:
            return WHO
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
            self.connection.sendall(text.encode())
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
                self._unsent = self._unsent[self.connection.send(self._unsent) :]
        except BlockingIOError:
            return True
