"""Server on a running head's socket: its state, queries, and intents of its user."""

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
from gswarm_agent.requests import is_own
from gswarm_tui.control import registry
from gswarm_tui.control.execution import Executor
from gswarm_tui.control.intents import IntentError, StopRecording, read_intent
from gswarm_tui.control.messages import (
    LENGTH,
    MAX_REQUEST,
    VERSION,
    MessageError,
    decode,
    encode,
    message_length,
)
from gswarm_tui.control.status import head_status, node_rows, session_rows
from gswarm_tui.hub import Hub
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.querying.results import QueryError, QuerySource, Result

CLOSE_TIMEOUT_S = 10.0
MAX_QUERIES = 16
"""Limit of running and queued queries."""

T = TypeVar("T")
_LOG = logging.getLogger(__name__)


class QueryableRecorder(Protocol):
    """The part of a recorder that the server needs."""

    path: Path
    uid: str

    def queries(self) -> QuerySource:
        """Return a query source for one client."""


class ControlServer:
    """Server on a head's socket; ``recording`` is None without a recording.

    ``end`` ends the recording as quitting does; ``label`` is what the nodes belong to, such as
    "job 4711". ``obstacles`` names who owns the folders that the socket would better be in; empty if none is
    in the way.
    """

    def __init__(
        self,
        hub: Hub,
        recording: QueryableRecorder | None,
        environ: Mapping[str, str],
        *,
        end: Callable[[], None] = lambda: None,
        label: str = "",
    ) -> None:
        self._hub = hub
        self._recording = recording
        self._executor = Executor(hub, recorded=recording is not None)
        self._end = end
        self._label = label
        parents = registry.parent_folders(environ)
        self._folder, self._lock = registry.register(parents)
        preferred = parents[: parents.index(self._folder.top)]
        self.obstacles = registry.describe_obstacles(preferred)
        self._note = None if recording is None else registry.leave_note(recording.path, recording.uid)
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()
        self._queries = 0
        # Not asyncio's shared threads: they are few, and closing the recording needs one. A query needs one
        # thread to run and one to cancel it.
        self._threads = ThreadPoolExecutor(2 * MAX_QUERIES, "query")

    @property
    def place(self) -> str:
        """The private folder of its socket."""
        return self._folder.path

    async def start(self) -> None:
        """Start listening. Raises OSError."""
        listening = socket.socket(socket.AF_UNIX)
        listening.setblocking(False)
        listening.bind(self._folder.address())
        self._server = await asyncio.start_unix_server(self._accept, sock=listening, limit=1 << 16)

    async def close(self) -> None:
        """Disconnect all clients and remove the socket."""
        if self._server is not None:
            self._server.close()
        for client in self._clients:
            client.cancel()
        if self._clients:
            await asyncio.wait(self._clients, timeout=CLOSE_TIMEOUT_S)
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._note is not None:
            self._note.unlink(missing_ok=True)
        self._folder.remove()
        self._folder.close()
        os.close(self._lock)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (client := asyncio.current_task()) is None:
            return
        self._clients.add(client)
        try:
            if is_own(writer.get_extra_info("socket")):
                await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            _LOG.debug("a client left", exc_info=True)
        except asyncio.CancelledError:
            self._refuse(writer, "the running gswarm-tui ended before it replied; run the command again")
        except MessageError as error:
            self._refuse(writer, f"the running gswarm-tui closed the connection: {error}")
        except Exception as error:
            _LOG.exception("a request failed")
            self._refuse(writer, f"the running gswarm-tui failed to reply ({type(error).__name__})")
        finally:
            self._clients.discard(client)
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        prefix = await reader.readexactly(LENGTH.size)
        request = decode(await reader.readexactly(message_length(prefix, MAX_REQUEST)))
        try:
            if request.get("want") != "status" and request.get("version") != VERSION:
                raise QueryError(f"the running gswarm-tui has another version, {__version__}")
            match request.get("want"):
                case "query":
                    await self._query(request, reader, writer)
                case "status":
                    await self._send(writer, self._status())
                case "nodes":
                    await self._send(writer, {"nodes": node_rows(self._hub)})
                case "sessions":
                    await self._send(writer, {"sessions": session_rows(self._hub)})
                case _:
                    await self._carry_out(request, writer)
        except (QueryError, StoreError, IntentError) as error:
            kind = "query" if isinstance(error, (QueryError, IntentError)) else "store"
            await self._send(writer, {"error": str(error), "kind": kind})

    async def _carry_out(self, request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Carry out an intent and send its result. Raises IntentError."""
        if (intent := read_intent(request)) is None:
            raise IntentError("the running gswarm-tui doesn't know this request")
        await self._send(writer, self._executor.carry_out(intent))
        if isinstance(intent, StopRecording):
            self._end()

    @staticmethod
    def _refuse(writer: asyncio.StreamWriter, reason: str) -> None:
        """Log a refusal and send it, whether or not the client still reads."""
        _LOG.warning("%s", reason)
        with contextlib.suppress(OSError, RuntimeError):
            writer.write(encode({"error": reason, "kind": "store"}))

    async def _send(self, writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
        writer.write(encode(message))
        await writer.drain()

    def _status(self) -> dict[str, Any]:
        path, uid = (None, "") if self._recording is None else (self._recording.path, self._recording.uid)
        return head_status(self._hub, path, uid, self._label)

    async def _query(
        self, request: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Send the columns, the rows in batches, and an end. Raises QueryError, StoreError."""
        sql, values = request.get("sql"), request.get("values")
        if self._recording is None:
            raise QueryError("this gswarm-tui records nothing, so it can't run queries")
        if not isinstance(sql, str) or not isinstance(values, list):
            raise QueryError("a query needs SQL and values")
        if self._queries >= MAX_QUERIES:
            _LOG.warning("a query was refused: %d are running or queued", self._queries)
            raise QueryError(f"{self._queries} queries are running or queued; try again when one has ended")
        source = self._recording.queries()
        self._queries += 1
        gone = asyncio.create_task(self._cancel_when_gone(reader, source))
        try:
            result = await self._in_thread(lambda: source.query(sql, *values))
            await self._send(writer, {"names": list(result.names), "types": list(result.types)})
            while messages := await self._in_thread(lambda: _next(result)):
                for message in messages:
                    writer.write(message)
                    await writer.drain()
            await self._send(writer, {"end": True})
        finally:
            gone.cancel()
            try:
                await self._in_thread(source.close)
            finally:
                self._queries -= 1

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def _cancel_when_gone(self, reader: asyncio.StreamReader, source: QuerySource) -> None:
        """Cancel the query when the client sends more or closes the connection."""
        with contextlib.suppress(OSError):
            await reader.read(1)
        await self._in_thread(source.close)


def _next(result: Result) -> list[bytes]:
    """Return the next rows as messages; none at the end. Raises QueryError, StoreError."""
    rows = next(result.batches, None)
    return [] if rows is None else list(_messages(rows))


def _messages(rows: Sequence[tuple[Any, ...]]) -> list[bytes]:
    try:
        return [encode({"rows": rows})]
    except MessageError as error:
        if len(rows) == 1:
            raise QueryError(f"a row of the result is too long: {error}") from None
        middle = len(rows) // 2
        return _messages(rows[:middle]) + _messages(rows[middle:])
