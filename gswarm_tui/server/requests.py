"""Requests of the HTTP server to the recorder, and what all its answers share: JSON, errors in one sentence.

Queries have limits on rows, bytes and time.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from fastapi import HTTPException, Request, Response
from pydantic import BaseModel, Field, StringConstraints

from gswarm_tui.control.intents import Intent, RecorderError, RefusedError
from gswarm_tui.control.recorder import NOT_CONNECTED, Recorder
from gswarm_tui.control.recorder_source import RecorderSource
from gswarm_tui.fleet.session_texts import MAX_NAME
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.querying.results import QueryError

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

    names: Sequence[str]
    types: Sequence[str]
    rows: list[tuple[Any, ...]]
    truncated: bool


class RecorderRequests:
    """Requests of all clients to a recorder; refusals become HTTP errors with its sentence."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._running_queries = 0

    async def carry_out(self, intent: Intent) -> dict[str, Any]:
        """Let the recorder carry out an intent; return its result. Raises HTTPException."""
        try:
            async with asyncio.timeout(REPLY_S):
                return await self._recorder.carry_out(intent)
        except TimeoutError:
            raise HTTPException(TIMED_OUT, f"The recorder didn't answer within {REPLY_S:.0f} s.") from None
        except RefusedError as error:
            raise HTTPException(CONFLICT, sentence(str(error))) from None
        except RecorderError as error:
            raise _unavailable(error) from None

    async def query(self, sql: str, *, most: int, timeout_s: float, client: Request) -> QueryRows:
        """Run one statement that reads; return its first ``most`` rows. Raises HTTPException.

        The query is cancelled when it takes too long, or when its ``client`` closes the connection.
        """
        if self._running_queries >= MAX_QUERIES:
            why = f"{MAX_QUERIES} queries are running; try again when one has ended."
            raise HTTPException(TOO_MANY, why, {"Retry-After": "1"})
        self._running_queries += 1
        source = RecorderSource.of_recorder(self._recorder)
        running = asyncio.ensure_future(asyncio.to_thread(_first_rows, source, sql, most))
        # As the body was read, the next message is that the client has left.
        leaving = asyncio.ensure_future(client.receive())
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.wait((running, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise HTTPException(BAD_REQUEST, "The query was cancelled because its client disconnected.")
            return running.result()
        except TimeoutError:
            why = f"The query took longer than {timeout_s:g} s and was cancelled."
            raise HTTPException(BAD_REQUEST, why) from None
        except QueryError as error:
            raise HTTPException(BAD_REQUEST, sentence(str(error))) from None
        except StoreError as error:
            raise _unavailable(error) from None
        finally:
            leaving.cancel()
            # The thread may not have sent the query yet, and then there is nothing to cancel.
            while not running.done():
                source.close()
                await asyncio.wait((running,), timeout=0.1)
            await asyncio.gather(running, return_exceptions=True)
            self._running_queries -= 1


def _first_rows(source: RecorderSource, sql: str, most: int) -> QueryRows:
    """Return the first ``most`` rows of a result, fewer if they are large. Raises QueryError, StoreError."""
    result = source.query(sql)
    rows: list[tuple[Any, ...]] = []
    size = 0
    for row in itertools.chain.from_iterable(result.batches):
        size += sum(map(_bytes_of, row))
        if len(rows) == most or size > MAX_RESULT_BYTES:
            return QueryRows(result.names, result.types, rows, truncated=True)
        rows.append(row)
    return QueryRows(result.names, result.types, rows, truncated=False)


def _bytes_of(value: Any) -> int:
    """Return about how many bytes a value takes in JSON."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, dict):
        return sum(_bytes_of(key) + _bytes_of(each) for key, each in value.items())
    return sum(map(_bytes_of, value)) if isinstance(value, (list, tuple)) else 8


def _unavailable(error: Exception) -> HTTPException:
    """Return the HTTP error for a recorder that doesn't answer, or can't write or read its file."""
    if str(error) == NOT_CONNECTED:
        return HTTPException(UNAVAILABLE, "The server has lost its recorder and is reconnecting; try again.")
    return HTTPException(UNAVAILABLE, sentence(str(error)))


class Problem(BaseModel):
    """Answer to a request that failed."""

    detail: str = Field(description="What is wrong, in one sentence")


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the errors that a call can answer with, for its documentation; all have these of the guard."""
    always = (400, 401, 403, 411, 413, 421, 422, 429, 503)
    return {status: {"model": Problem} for status in sorted({*always, *statuses})}


def sentence(clause: str) -> str:
    """Return a clause, such as an error of the recorder, as a sentence."""
    return f"{clause[:1].upper()}{clause[1:]}{'' if clause.endswith('.') else '.'}"


def json_answer(value: Any, status: int = 200) -> Response:
    """Return a value as JSON; its model is only documented, as checking large ones would take long."""
    content = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(content.encode("utf-8", "replace"), status, media_type="application/json")
