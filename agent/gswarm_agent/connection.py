"""A connection to the agent: its descriptors, the request it brings, and the bytes not sent yet."""

from __future__ import annotations

import os
import selectors
import time
from contextlib import suppress

from gswarm_agent.attach import LONGEST_REQUEST, MARK, STATUS
from gswarm_agent.delivery import Delivery
from gswarm_agent.wire import clip_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Optional

_BYE_S = 2.0
_CHUNK = 65536


class AgentConnection:
    """Connection of a recorder, or of a short request: ``status`` or ``mark``.

    ``reading`` is the descriptor to wait on; ``writing`` is another one on standard streams. A socket, if the
    descriptors are one's, closes with the connection.
    """

    def __init__(self, delivery: Delivery, reading: int, writing: int, peer: Optional[socket.socket]) -> None:
        self.delivery = delivery
        self.has_unsent = False
        self.closes_at: Optional[float] = None
        self.reading = reading
        self._writing = writing
        self._socket = peer
        self._unsent = memoryview(b"")
        self._is_request: Optional[bool] = None
        self._request = b""

    def receive(self) -> bytes:
        """Return the bytes that have arrived; empty at the end. Raises OSError."""
        return os.read(self.reading, _CHUNK)

    def wait_for_room(self, selector: selectors.BaseSelector, unsent: bool) -> None:
        """Wake the selector when the other side can take more, as long as bytes are ``unsent``."""
        self.has_unsent = unsent
        if self._writing == self.reading:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if unsent else 0)
            selector.modify(self.reading, events, selector.get_key(self.reading).data)
        elif unsent:
            selector.register(self._writing, selectors.EVENT_WRITE, lambda: None)
        else:
            selector.unregister(self._writing)

    def close(self, selector: selectors.BaseSelector) -> None:
        """Close the descriptors."""
        selector.unregister(self.reading)
        if self._socket is not None:
            self._socket.close()
            return
        if self._writing != self.reading:
            if self.has_unsent:
                selector.unregister(self._writing)
            # Other processes may share this pipe and expect writes that block.
            with suppress(OSError):
                os.set_blocking(self._writing, True)
            os.close(self._writing)
        os.close(self.reading)

    def request(self, data: bytes) -> Optional[bytes]:
        """Return a complete request, empty while it isn't complete; None if a head is at the other end."""
        if self._is_request is None:
            self._is_request = data[:1] in (STATUS, MARK)
        if not self._is_request:
            return None
        self._request += data
        complete = (
            self._request == STATUS or self._request.endswith(b"\n") or len(self._request) > LONGEST_REQUEST
        )
        return self._request if complete else b""

    def reply(self, text: str) -> None:
        """Reply to a request."""
        with suppress(OSError):
            os.write(self._writing, text.encode())

    def end(self, reason: str) -> None:
        """Send a bye, and close soon even if the other side doesn't read it."""
        self.delivery.end(clip_text(reason))
        if self.closes_at is None:
            self.closes_at = time.monotonic() + _BYE_S

    def send(self) -> bool:
        """Send as much as the other side takes; return whether bytes are left. Raises OSError."""
        try:
            while True:
                if not self._unsent:
                    self._unsent = memoryview(self.delivery.take())
                    if not self._unsent:
                        return False
                self._unsent = self._unsent[os.write(self._writing, self._unsent) :]
        except BlockingIOError:
            return True
