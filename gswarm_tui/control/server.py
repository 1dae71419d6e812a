"""The running head's end of its socket: answers queries on its recording, takes marks, says what it is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

from gswarm_agent import __version__
from gswarm_agent.mark import MarkError, checked
from gswarm_agent.requests import is_own
from gswarm_tui.control import notes, places
from gswarm_tui.control.messages import LENGTH, MAX_REQUEST, VERSION, MessageError, decode, encode, length
from gswarm_tui.hub import Hub
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.querying.results import QueryError, QuerySource, Result

PATIENCE_S = 10.0
"""Within this a visitor has to say what it wants."""
MOST_QUERIES = 16
"""Those that run and those that wait until they may."""

T = TypeVar("T")
_LOG = logging.getLogger(__name__)


class PatienceError(Exception):
    """A visitor that came and asked for nothing."""


class Recording(Protocol):
    """What is needed of a recorder here."""

    path: Path
    uid: str

    def queries(self) -> QuerySource:
        """Something to ask, for one visitor."""


class ControlServer:
    """Listens while a head runs; ``recording`` is None where it records nothing."""

    def __init__(self, hub: Hub, recording: Recording | None, environ: Mapping[str, str]) -> None:
        self._hub = hub
        self._recording = recording
        self._folder, self._lock = places.make(places.tops(environ))
        self._note = None if recording is None else notes.leave(recording.path)
        self._server: asyncio.Server | None = None
        self._visits: set[asyncio.Task[None]] = set()
        self._queries = 0
        # Its own threads: those that everyone shares are few, and closing the recording needs one. A query
        # needs one that works on it and one that ends it.
        self._threads = ThreadPoolExecutor(2 * MOST_QUERIES, "query")

    async def start(self) -> None:
        """Begin to listen. Raises OSError."""
        listening = socket.socket(socket.AF_UNIX)
        listening.setblocking(False)
        listening.bind(self._folder.address())
        self._server = await asyncio.start_unix_server(self._met, sock=listening, limit=1 << 16)

    async def close(self) -> None:
        """End all visits and remove the socket."""
        if self._server is not None:
            self._server.close()
        for visit in self._visits:
            visit.cancel()
        if self._visits:
            await asyncio.wait(self._visits, timeout=PATIENCE_S)
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._note is not None:
            self._note.unlink(missing_ok=True)
        self._folder.remove()
        self._folder.close()
        os.close(self._lock)

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (visit := asyncio.current_task()) is None:
            return
        self._visits.add(visit)
        try:
            if is_own(writer.get_extra_info("socket")):
                await self._visit(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            _LOG.debug("a visitor left", exc_info=True)
        except asyncio.CancelledError:
            self._refuse(writer, "the running gswarm-tui ended before it had answered; ask again")
        except (MessageError, PatienceError) as error:
            self._refuse(writer, f"the running gswarm-tui closed the connection: {error}")
        except Exception as error:
            _LOG.exception("a visit failed")
            self._refuse(writer, f"the running gswarm-tui failed to answer ({type(error).__name__})")
        finally:
            self._visits.discard(visit)
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await self._request(reader)
        try:
            if request.get("want") != "status" and request.get("version") != VERSION:
                raise QueryError(
                    f"the running gswarm-tui is version {__version__}, another than this command"
                )
            match request.get("want"):
                case "query":
                    await self._query(request, reader, writer)
                case "mark":
                    await self._send(writer, self._mark(request))
                case "status":
                    await self._send(writer, self._status())
                case _:
                    raise QueryError("the running gswarm-tui doesn't know what is wanted")
        except (QueryError, StoreError, MarkError) as error:
            kind = "query" if isinstance(error, (QueryError, MarkError)) else "store"
            await self._send(writer, {"error": str(error), "kind": kind})

    @staticmethod
    async def _request(reader: asyncio.StreamReader) -> dict[str, Any]:
        """What is wanted. Raises MessageError, asyncio.IncompleteReadError, PatienceError."""

        async def read() -> dict[str, Any]:
            head = await reader.readexactly(LENGTH.size)
            return decode(await reader.readexactly(length(head, MAX_REQUEST)))

        reading = asyncio.create_task(read())
        try:
            # In two parts: where this process or the machine stalls, the first may be over before the visitor
            # could ask, or before what it asked was read.
            for _ in range(2):
                await asyncio.wait((reading,), timeout=PATIENCE_S / 2)
            if not reading.done():
                raise PatienceError(f"nothing was asked within {PATIENCE_S:g} s")
            return reading.result()
        finally:
            reading.cancel()

    @staticmethod
    def _refuse(writer: asyncio.StreamWriter, why: str) -> None:
        """The last words to a visitor, which needn't be listening."""
        _LOG.warning("%s", why)
        with contextlib.suppress(OSError, RuntimeError):
            writer.write(encode({"error": why, "kind": "store"}))

    async def _send(self, writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
        writer.write(encode(message))
        await writer.drain()

    def _status(self) -> dict[str, Any]:
        recorder = self._hub.recorder
        return {
            "pid": os.getpid(),
            "path": None if self._recording is None else str(self._recording.path),
            "uid": "" if self._recording is None else self._recording.uid,
            "started_at": self._hub.started_at,
            "nodes": list(self._hub.fleet.nodes),
            "error": "" if recorder is None else recorder.error,
        }

    def _mark(self, request: dict[str, Any]) -> dict[str, Any]:
        """Sets a mark now. Raises MarkError."""
        name, detail = checked(request.get("name"), request.get("values"))
        self._hub.mark(name, detail)
        return {"recorded": self._recording is not None}

    async def _query(
        self, request: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Sends the columns, the rows in batches, and an end. Raises QueryError, StoreError."""
        sql, values = request.get("sql"), request.get("values")
        if self._recording is None:
            raise QueryError("this gswarm-tui records nothing, so there is nothing to ask")
        if not isinstance(sql, str) or not isinstance(values, list):
            raise QueryError("a query is SQL and values")
        if self._queries >= MOST_QUERIES:
            _LOG.warning("a query was refused: %d run or wait already", self._queries)
            raise QueryError(
                f"{self._queries} queries run or wait already; ask again when one of them has ended"
            )
        queries = self._recording.queries()
        self._queries += 1
        gone = asyncio.create_task(self._interrupt_when_gone(reader, queries))
        try:
            answer = await self._in_thread(lambda: queries.query(sql, *values))
            await self._send(writer, {"names": list(answer.names), "types": list(answer.types)})
            while messages := await self._in_thread(lambda: _next(answer)):
                for message in messages:
                    writer.write(message)
                    await writer.drain()
            await self._send(writer, {"end": True})
        finally:
            gone.cancel()
            try:
                await self._in_thread(queries.close)
            finally:
                self._queries -= 1

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def _interrupt_when_gone(self, reader: asyncio.StreamReader, queries: QuerySource) -> None:
        """A visitor that says more, or nothing any more, has gone."""
        with contextlib.suppress(OSError):
            await reader.read(1)
        await self._in_thread(queries.close)


def _next(answer: Result) -> list[bytes]:
    """The next rows as messages; none at the end. Raises QueryError, StoreError."""
    rows = next(answer.batches, None)
    return [] if rows is None else list(_messages(rows))


def _messages(rows: Sequence[tuple[Any, ...]]) -> list[bytes]:
    try:
        return [encode({"rows": rows})]
    except MessageError as error:
        if len(rows) == 1:
            raise QueryError(f"a row of the answer is too long: {error}") from None
        middle = len(rows) // 2
        return _messages(rows[:middle]) + _messages(rows[middle:])
