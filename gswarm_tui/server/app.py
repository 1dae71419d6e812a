"""The HTTP server's application, put together from its routers."""

from __future__ import annotations

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


def build_app(*routers: APIRouter) -> FastAPI:
    """Return an application with these routers."""
    app = FastAPI(
        title="gswarm-tui",
        version=__version__,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # these pages would load scripts from elsewhere
        redoc_url=None,
    )
    for router in routers:
        app.include_router(router)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    return app


async def _answer_http_error(_: Request, error: Exception) -> JSONResponse:
    """Answer an error with a sentence."""
    assert isinstance(error, HTTPException)  # noqa: S101 - as registered
    detail = _SENTENCES.get(error.detail, error.detail)
    return JSONResponse({"detail": detail}, error.status_code, error.headers)


async def _answer_invalid(_: Request, error: Exception) -> JSONResponse:
    """Answer invalid values with a sentence on the first of them."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - as registered
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"] if part != "body")
    what = f"{place}: {first['msg']}" if place else first["msg"]
    return JSONResponse({"detail": f"{what}."}, 422)
