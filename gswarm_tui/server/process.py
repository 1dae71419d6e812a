"""The HTTP server's process: uvicorn with the application, made of its routers, behind its guard."""

from __future__ import annotations

import logging
import re
import socket
from typing import Any

import uvicorn
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gswarm_agent import __version__
from gswarm_tui.control.attached import AttachedRun
from gswarm_tui.options.server_options import ServerSettings
from gswarm_tui.server.api import api_router
from gswarm_tui.server.connections import uvicorn_options
from gswarm_tui.server.event_stream import FrameStream
from gswarm_tui.server.gswarm_profiler_api import gswarm_profiler_router
from gswarm_tui.server.guard import Guard
from gswarm_tui.server.listening import allow_many_connections
from gswarm_tui.server.requests import RecorderRequests
from gswarm_tui.server.scrape import metrics_router
from gswarm_tui.server.session_exports import SessionExports
from gswarm_tui.server.tokens import Tokens

_SENTENCES = {  # for the words of Starlette and FastAPI
    "Not Found": "There is nothing at this address; GET /api/v1/openapi.json lists all.",
    "Method Not Allowed": "This address doesn't take this method.",
    "There was an error parsing the body": "The body isn't valid JSON, or it is nested too deeply.",
}

_INVALID = {  # for the words of pydantic
    "json_invalid": "The body isn't valid JSON",
    "missing": "A value is needed",
    "extra_forbidden": "There is no such value",
}


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
        stream = FrameStream(attached, tokens)
        attached.flushed += (self._exports.check, stream.check)
        app = _build_app(
            gswarm_profiler_router(attached, requests, self._exports),
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


def _build_app(*routers: APIRouter) -> FastAPI:
    """Return an application with these routers."""
    app = FastAPI(
        title="gswarm-tui",
        version=__version__,
        openapi_url="/api/v1/openapi.json",
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
    detail = _SENTENCES.get(error.detail, error.detail)
    headers = dict(error.headers or {})
    if "Allow" in headers:  # Starlette names those of one route only
        headers["Allow"] = ", ".join(_methods(request.app, request.url.path)) or headers["Allow"]
    return JSONResponse({"detail": detail}, error.status_code, headers)


def _methods(app: FastAPI, path: str) -> list[str]:
    """Return the methods that an address takes."""
    for address, calls in app.openapi()["paths"].items():
        if re.fullmatch(re.sub(r"\\{[a-z]+\\}", "[^/]+", re.escape(address)), path):
            return sorted(map(str.upper, calls))
    return []


async def _answer_invalid(_: Request, error: Exception) -> JSONResponse:
    """Answer invalid values with a sentence on the first of them."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - as registered
    return JSONResponse({"detail": f"{_why_invalid(error.errors()[0])}."}, 422)


def _why_invalid(error: dict[str, Any]) -> str:
    """Return why a value is invalid, as a clause that names its place."""
    why = _INVALID.get(error["type"], str(error["msg"]))
    if error["type"] == "json_invalid":
        return why
    place = ".".join(str(part) for part in error["loc"] if part != "body")
    if not place:
        return "The body must be a JSON object, sent with the header Content-Type: application/json"
    return f"{place}: {why.removeprefix('Value error, ')}"
