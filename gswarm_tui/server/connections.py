"""Connections of the HTTP server: bounded in number, and closed when a request's head doesn't arrive.

uvicorn has no time limit for a request's head: idle connections of others would take all places.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

HEAD_S = 10.0
"""A request's head has to arrive within this time after connecting."""
UNREAD_S = 30.0
"""A client that reads nothing of its answer for so long is disconnected."""
MAX_CONNECTIONS = 256
"""With more, the connection that has waited longest without a request is closed."""


class BoundedProtocol(H11Protocol):
    """HTTP connection that must send its request soon, and makes room for others until it has."""

    _idle: dict[BoundedProtocol, None] = {}  # noqa: RUF012 - of all connections, the oldest first
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._await_head()
        if len(self.connections) > MAX_CONNECTIONS:
            oldest = next(iter(self._idle))
            oldest.transport.abort()
            oldest._forget_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._forget_head()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self._unread = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Write again."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def handle_events(self) -> None:
        """Handle what was received; note whether a request is running."""
        super().handle_events()
        if self._is_answering():
            self._forget_head()

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid request and close; its application, which may have begun, answers nothing more.

        Its second answer would be an error in the log, which strangers could fill.
        """
        super().send_400_response(msg)
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None:
            cycle.disconnected = True

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        if not self.transport.is_closing() and not self._is_answering():
            self._await_head()

    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    def _await_head(self) -> None:
        self._forget_head()
        self._idle[self] = None
        self._deadline = self.loop.call_later(HEAD_S, self._close_idle)

    def _forget_head(self) -> None:
        self._idle.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close_idle(self) -> None:
        self._forget_head()
        self.transport.abort()


def uvicorn_options() -> dict[str, Any]:
    """Return uvicorn's options for such connections."""
    return {
        "http": BoundedProtocol,
        "ws": "none",
        "loop": "asyncio",
        "h11_max_incomplete_event_size": 32 * 1024,
        "timeout_keep_alive": int(HEAD_S),
        "timeout_graceful_shutdown": 2,
        "server_header": False,
        "date_header": False,
        "access_log": False,
        "log_config": None,
        "lifespan": "off",
        "proxy_headers": False,
        "backlog": 128,
    }
