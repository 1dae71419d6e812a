"""Answers of the HTTP server that all its calls share: JSON, and errors with one sentence."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import Response
from pydantic import BaseModel, Field, StringConstraints

from gswarm_tui.fleet.session_texts import MAX_NAME

SessionName = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=MAX_NAME)]


class Problem(BaseModel):
    """Answer to a request that failed."""

    detail: str = Field(description="What is wrong, in one sentence")


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the errors that a call can answer with, for its documentation; all have these of the guard."""
    texts = {
        400: "The request is invalid, or the recorder refused it",
        401: "The token is missing or wrong",
        403: "The token or the web page's origin doesn't allow this",
        404: "There is no such thing",
        408: "The request arrived too slowly",
        409: "The recorder refused the change",
        413: "The body is too long",
        421: "The host name isn't this server's",
        422: "A value is missing or has a wrong type",
        429: "Too many requests; Retry-After has the seconds to wait",
        503: "The recorder can't be reached now",
        504: "The recorder didn't answer in time",
    }
    always = (400, 401, 403, 408, 413, 421, 422, 429, 503)
    return {
        status: {"model": Problem, "description": texts[status]} for status in sorted({*always, *statuses})
    }


def sentence(clause: str) -> str:
    """Return a clause, such as an error of the recorder, as a sentence."""
    return f"{clause[:1].upper()}{clause[1:]}{'' if clause.endswith('.') else '.'}"


def json_answer(value: Any, status: int = 200) -> Response:
    """Return a value as JSON; its model is only documented, as checking large ones would take long."""
    content = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(content.encode("utf-8", "replace"), status, media_type="application/json")
