"""Service of one recording's API and metrics over HTTP."""

from __future__ import annotations

import socket

from gswarm_tui.control.attached import AttachedRun
from gswarm_tui.options.server_options import ServerSettings
from gswarm_tui.server.api import api_router
from gswarm_tui.server.application import HttpServer, build_app
from gswarm_tui.server.event_stream import FrameStream
from gswarm_tui.server.gswarm_profiler_api import gswarm_profiler_router
from gswarm_tui.server.guard import Guard
from gswarm_tui.server.requests import RecorderRequests
from gswarm_tui.server.scrape import metrics_router
from gswarm_tui.server.session_exports import SessionExports
from gswarm_tui.server.tokens import Tokens


class Service:
    """HTTP service on an attached run."""

    def __init__(self, attached: AttachedRun, settings: ServerSettings, tokens: Tokens) -> None:
        requests, stream = RecorderRequests(attached), FrameStream(attached, tokens)
        self._exports = SessionExports(attached)
        attached.flushed.append(stream.check)
        app = build_app(
            gswarm_profiler_router(attached, requests, self._exports),
            api_router(attached, requests, stream, self._exports),
            metrics_router(attached),
            openapi_url="/api/v1/openapi.json",
        )
        self._server = HttpServer(Guard(app, tokens, settings.origins), settings, stream.close)

    async def run(self, listening: socket.socket) -> None:
        """Answer requests until ``end`` is called; then finish the exports."""
        await self._server.serve(sockets=[listening])
        await self._exports.finish()

    def end(self) -> None:
        """Stop answering."""
        self._server.should_exit = True
