"""Requests of the HTTP server to the recorder, and what all its answers share: JSON, errors in one sentence.

Queries have limits on rows, bytes and time.
"""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any, NamedTuple

from fastapi import HTTPException, Response
from pydantic import BaseModel, Field, StringConstraints

from gswarm_tui.control.attached import NOT_CONNECTED, AttachedRun
from gswarm_tui.control.intents import Intent
from gswarm_tui.fleet.session_texts import MAX_NAME

REPLY_S = 30.0
MAX_QUERIES = 4
"""Queries of all clients that run at once; the recorder has places for more, which commands need."""
MAX_ROWS = 100_000
MAX_RESULT_BYTES = 32 * 1024 * 1024
MAX_QUERY_S = 60.0
BAD_REQUEST, CONFLICT, TOO_MANY, UNAVAILABLE, TIMED_OUT = 400, 409, 429, 503, 504
SessionName = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=MAX_NAME)]


class QueryRows(NamedTuple):
    """Result of a query; ``truncated`` if it has more rows than these."""

    names: list[str]
    types: list[str]
    rows: list[list[Any]]
    truncated: bool


class RecorderRequests:
    """Requests to an attached run's recorder; refusals become HTTP errors with its sentence."""

    def __init__(self, attached: AttachedRun) -> None:
        self._attached = attached
        self._running_queries = 0

    async def carry_out(self, intent: Intent) -> dict[str, Any]:
        """Let the recorder carry out an intent; return its result. Raises HTTPException."""
        replied: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        cancel = self._attached.request(intent.message(), replied.set_result)
        try:
            async with asyncio.timeout(REPLY_S):
                reply = await replied
        except TimeoutError:
            raise HTTPException(TIMED_OUT, f"The recorder didn't answer within {REPLY_S:.0f} s.") from None
        finally:
            cancel()
        if "error" in reply:
            raise _refusal(reply, CONFLICT)
        return reply

    async def query(self, sql: str, *, most: int, timeout_s: float) -> QueryRows:
        """Run one statement that reads; return its first ``most`` rows. Raises HTTPException."""
        if self._running_queries >= MAX_QUERIES:
            why = f"{MAX_QUERIES} queries are running; try again when one has ended."
            raise HTTPException(TOO_MANY, why, {"Retry-After": "1"})
        self._running_queries += 1
        try:
            return await self._query(sql, most, timeout_s)
        finally:
            self._running_queries -= 1

    async def _query(self, sql: str, most: int, timeout_s: float) -> QueryRows:
        replies: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        message = {"want": "query", "sql": sql, "values": []}
        cancel = self._attached.request(message, replies.put_nowait)
        try:
            async with asyncio.timeout(timeout_s):
                head = await replies.get()
                if "error" in head:
                    raise _refusal(head, BAD_REQUEST)
                rows: list[list[Any]] = []
                size = 0
                while "end" not in (reply := await replies.get()):
                    if "error" in reply:
                        raise _refusal(reply, BAD_REQUEST)
                    for row in reply["rows"]:
                        size += sum(map(_bytes_of, row))
                        if len(rows) == most or size > MAX_RESULT_BYTES:
                            return QueryRows(head["names"], head["types"], rows, truncated=True)
                        rows.append(row)
                return QueryRows(head["names"], head["types"], rows, truncated=False)
        except TimeoutError:
            why = f"The query took longer than {timeout_s:g} s and was cancelled."
            raise HTTPException(BAD_REQUEST, why) from None
        finally:
            cancel()


def _bytes_of(value: Any) -> int:
    """Return about how many bytes a value takes in JSON."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, dict):
        return sum(_bytes_of(key) + _bytes_of(each) for key, each in value.items())
    return sum(map(_bytes_of, value)) if isinstance(value, (list, tuple)) else 8


def _refusal(reply: dict[str, Any], status: int) -> HTTPException:
    """Return the HTTP error for a recorder's refusal: ``status`` if the request is the reason."""
    why = str(reply["error"])
    if why == NOT_CONNECTED:
        return HTTPException(UNAVAILABLE, "The server has lost its recorder and is reconnecting; try again.")
    return HTTPException(status if reply.get("kind") == "query" else UNAVAILABLE, sentence(why))


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
        409: "The recorder refused the change",
        411: "The body was sent in chunks",
        413: "The body is too long",
        421: "The host name isn't this server's",
        422: "A value is missing or has a wrong type",
        429: "Too many requests; Retry-After has the seconds to wait",
        503: "The recorder can't be reached now",
        504: "The recorder didn't answer in time",
    }
    always = (400, 401, 403, 411, 413, 421, 422, 429, 503)
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
