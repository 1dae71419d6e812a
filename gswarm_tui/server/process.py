"""The HTTP server's process: uvicorn with the application behind its guard."""

from __future__ import annotations

import logging
import socket

import uvicorn

from gswarm_tui.control.attached import AttachedRun
from gswarm_tui.options.server_options import ServerSettings
from gswarm_tui.server.app import build_app
from gswarm_tui.server.connections import allow_many_files, uvicorn_options
from gswarm_tui.server.guard import Guard
from gswarm_tui.server.scrape import Scrapes
from gswarm_tui.server.tokens import Tokens


class Service:
    """HTTP service on an attached run."""

    def __init__(self, attached: AttachedRun, settings: ServerSettings, tokens: Tokens) -> None:
        allow_many_files()
        logging.getLogger("uvicorn").setLevel(logging.ERROR)  # strangers could fill the log with warnings
        options = uvicorn_options()
        if settings.tls_cert is not None:
            options |= {"ssl_certfile": str(settings.tls_cert), "ssl_keyfile": str(settings.tls_key)}
        self._scrapes = Scrapes(attached)
        guard = Guard(build_app(attached, self._scrapes), tokens, settings.origins)
        self._server = uvicorn.Server(uvicorn.Config(guard, **options))

    async def run(self, listening: socket.socket) -> None:
        """Answer requests until ``end`` is called or a signal comes."""
        try:
            await self._server.serve(sockets=[listening])
        finally:
            await self._scrapes.close()

    def end(self) -> None:
        """Stop answering."""
        self._server.should_exit = True
