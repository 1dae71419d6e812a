"""The HTTP server's application, put together from its routers."""

from __future__ import annotations

import re
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gswarm_agent import __version__

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


def build_app(*routers: APIRouter) -> FastAPI:
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
