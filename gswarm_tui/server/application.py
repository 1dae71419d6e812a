"""The web application of all servers, and the uvicorn server that runs it behind its guard.

``serve`` and ``--http`` mount the API and the metrics, ``web`` mounts the pages.
"""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gswarm_agent import __version__
from gswarm_tui.options.server_options import ServerSettings
from gswarm_tui.server.guard import Guard
from gswarm_tui.server.listening import AcceptingSocket

KEPT_S = 10
"""A connection is closed when so many seconds have passed since its last answer without another request."""
MAX_CONNECTIONS = 256
"""With more connections, requests are refused with status 503."""
HEARTBEAT_S = 15.0
"""A browser that doesn't answer a ping in this time is disconnected."""
MAX_MESSAGE = 64 * 1024
"""Longest message of a browser: pasted text."""

_SENTENCES = {  # for the words of Starlette and FastAPI
    "Not Found": "There is nothing at this address.",
    "Method Not Allowed": "This address doesn't take this method.",
    "There was an error parsing the body": "The body isn't valid JSON, or it is nested too deeply.",
}

_INVALID = {  # for the words of pydantic
    "json_invalid": "The body isn't valid JSON",
    "missing": "A value is needed",
    "extra_forbidden": "There is no such value",
}


class HttpServer(uvicorn.Server):
    """Server of one application; ``closing`` is called before its connections are closed.

    Without it, uvicorn waits for streams that have no end, and logs a traceback of each.
    """

    def __init__(
        self, app: Guard, settings: ServerSettings, closing: Callable[[], None] = lambda: None
    ) -> None:
        logging.getLogger("uvicorn.error").addFilter(_is_failure)
        self._settings, self._strangers = settings, app.strangers
        super().__init__(
            uvicorn.Config(
                app, http="h11", loop="asyncio", lifespan="off",
                limit_concurrency=MAX_CONNECTIONS, backlog=128, h11_max_incomplete_event_size=32 * 1024,
                ws_max_size=MAX_MESSAGE, ws_ping_interval=HEARTBEAT_S, ws_ping_timeout=HEARTBEAT_S,
                timeout_keep_alive=KEPT_S, timeout_graceful_shutdown=2,
                server_header=False, date_header=False, proxy_headers=False,
                access_log=False, log_config=None,
                ssl_certfile=settings.tls_cert, ssl_keyfile=settings.tls_key,
            )
        )  # fmt: skip
        self._closing = closing

    async def serve_at(self, listening: socket.socket) -> None:
        """Serve at a listening socket, which this takes over, until ``end`` is called."""
        by_address = not self._settings.behind_proxy
        await self.serve(sockets=[AcceptingSocket(listening, self._strangers, by_address=by_address)])

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signals to those who run the server."""
        yield

    def end(self) -> None:
        """Close all connections, and end."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, then all connections."""
        self._closing()
        await super().shutdown(sockets)


def _is_failure(record: logging.LogRecord) -> bool:
    """Return whether the application failed; strangers could fill the log with the rest."""
    return record.getMessage().startswith("Exception in ASGI application")


def build_app(*routers: APIRouter, openapi_url: str | None = None) -> FastAPI:
    """Return an application with these routers, whose errors are sentences in JSON."""
    app = FastAPI(
        title="gswarm-tui",
        version=__version__,
        openapi_url=openapi_url,
        docs_url=None,  # these pages would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # behind a proxy, the redirect would lead to another address, without TLS
    )
    for router in routers:
        app.include_router(router)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    return app


async def _answer_http_error(request: Request, error: Exception) -> JSONResponse:
    """Answer an error with a sentence, and a wrong method with all methods of the address."""
    assert isinstance(error, HTTPException)  # noqa: S101 - as registered
    headers = dict(error.headers or {})
    if "Allow" in headers:  # Starlette names those of one route only
        headers["Allow"] = ", ".join(_methods(request.app, request.url.path)) or headers["Allow"]
    return JSONResponse({"detail": _SENTENCES.get(error.detail, error.detail)}, error.status_code, headers)


def _methods(app: FastAPI, path: str) -> list[str]:
    """Return the methods that an address takes."""
    for address, calls in app.openapi()["paths"].items():
        if re.fullmatch(re.sub(r"\\{[a-z]+\\}", "[^/]+", re.escape(address)), path):
            return sorted(map(str.upper, calls))
    return []


async def _answer_invalid(_: Request, error: Exception) -> JSONResponse:
    """Answer invalid values with a sentence on the first of them, which names its place."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - as registered
    first: dict[str, Any] = error.errors()[0]
    why = _INVALID.get(first["type"], str(first["msg"])).removeprefix("Value error, ")
    place = ".".join(str(part) for part in first["loc"] if part != "body")
    if first["type"] != "json_invalid":
        nowhere = "The body must be a JSON object, sent with the header Content-Type: application/json"
        why = f"{place}: {why}" if place else nowhere
    return JSONResponse({"detail": f"{why}."}, 422)
