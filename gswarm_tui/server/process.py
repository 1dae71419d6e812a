"""The HTTP server's process: uvicorn with the application behind its guard."""

from __future__ import annotations

import logging
import socket

import uvicorn

from gswarm_tui.control.attached import AttachedRun
from gswarm_tui.options.server_options import ServerSettings
from gswarm_tui.server.api import api_router
from gswarm_tui.server.app import build_app
from gswarm_tui.server.connections import uvicorn_options
from gswarm_tui.server.event_stream import FrameStream
from gswarm_tui.server.exports import SessionExports
from gswarm_tui.server.guard import Guard
from gswarm_tui.server.listening import allow_many_connections
from gswarm_tui.server.profiler_api import profiler_router
from gswarm_tui.server.requests import RecorderRequests
from gswarm_tui.server.scrape import metrics_router
from gswarm_tui.server.tokens import Tokens


class Service:
    """HTTP service on an attached run."""

    def __init__(self, attached: AttachedRun, settings: ServerSettings, tokens: Tokens) -> None:
        allow_many_connections()
        logging.getLogger("uvicorn").setLevel(logging.ERROR)  # strangers could fill the log with warnings
        options = uvicorn_options()
        if settings.tls_cert is not None:
            options |= {"ssl_certfile": str(settings.tls_cert), "ssl_keyfile": str(settings.tls_key)}
        requests = RecorderRequests(attached)
        self._exports = SessionExports(attached, requests)
        stream = FrameStream(attached)
        attached.flushed += (self._exports.check, stream.check)
        app = build_app(
            profiler_router(attached, requests, self._exports),
            api_router(attached, requests, stream),
            metrics_router(attached),
        )
        guard = Guard(app, tokens, settings.origins)
        self._server = _Server(uvicorn.Config(guard, **options), stream)

    async def run(self, listening: socket.socket) -> None:
        """Answer requests until ``end`` is called or a signal comes; then finish the exports."""
        await self._server.serve(sockets=[listening])
        await self._exports.finish()

    def end(self) -> None:
        """Stop answering."""
        self._server.should_exit = True


class _Server(uvicorn.Server):
    """Server whose streams end with it; else it would wait for them, and log a traceback of each."""

    def __init__(self, config: uvicorn.Config, stream: FrameStream) -> None:
        super().__init__(config)
        self._stream = stream

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, then all connections."""
        self._stream.close()
        await super().shutdown(sockets)
