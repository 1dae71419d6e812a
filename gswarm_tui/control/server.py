"""Server for a recorder's clients: its state, its events, queries, and intents of its user."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gswarm_agent import __version__
from gswarm_agent.attach import is_own
from gswarm_agent.folder import SOCKET
from gswarm_tui.asking.asking import Asking
from gswarm_tui.control import registry
from gswarm_tui.control.execution import Executor
from gswarm_tui.control.intents import Detach, IntentError, StopRecording, StopSession, read_intent
from gswarm_tui.control.messages import MAX_REQUEST, VERSION, MessageError, encode, read_message
from gswarm_tui.control.profiles import serve_import
from gswarm_tui.control.status import head_status, node_rows
from gswarm_tui.control.viewers import Client, Send, Viewers
from gswarm_tui.link.hub import Hub
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.querying.arrays import ArraySource, pack_arrays
from gswarm_tui.store.querying.results import QueryError, Result

if TYPE_CHECKING:
    from gswarm_tui.store.recording.recorder import FileWriter

CLOSE_TIMEOUT_S = 10.0
REACHABLE_EVERY_S = 5.0
"""Time between two looks whether the socket still has its name."""
LAST_SAMPLE_S = 2.0
OF_ALL_VERSIONS = ("status", "stop_recording")
"""Requests that are answered to clients of other versions, too."""
MAX_QUERIES = 16
"""Limit of running and queued queries."""
MESSAGE_BYTES = 4 * 1024 * 1024
"""Rows of a result are sent in messages of about this size."""

T = TypeVar("T")
_LOG = logging.getLogger(__name__)


@dataclass(eq=False)
class ControlServer:
    """Server for a recorder's clients; ``recording`` is None without a recording.

    ``end`` ends the recorder for a reason, ``detach`` lets it go on without a screen, ``attended`` is called
    when a screen comes or goes. ``label`` is what the nodes belong to, such as "job 4711", and ``job_id``
    their Slurm job. ``asking`` asks their job, None for simulated nodes.
    """

    hub: Hub
    recording: FileWriter | None
    listening: registry.Listening
    environ: Mapping[str, str]
    _: KW_ONLY
    uid: str
    end: Callable[[str], None] = lambda _why: None
    detach: Callable[[], None] = lambda: None
    attended: Callable[[], None] = lambda: None
    label: str = ""
    job_id: str = ""
    asking: Asking | None = None

    def __post_init__(self) -> None:
        self._executor = Executor(self.hub, recorded=self.recording is not None, asking=self.asking)
        self._note = self._leave_note()
        self._server: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._clients: set[asyncio.Task[None]] = set()
        self._viewers = Viewers(self.hub, self._describe, self.attended)
        self._queries = 0
        # Not asyncio's shared threads: they are few, and closing the recording needs one. A query needs one
        # thread to run and one to cancel it.
        self._threads = ThreadPoolExecutor(2 * MAX_QUERIES, "query")

    @property
    def screens(self) -> int:
        """Number of attached screens in terminals and browsers."""
        return self._viewers.screens

    async def start(self, first: socket.socket | None = None) -> None:
        """Serve the first client, whose connection was made before, and all others that connect."""
        if first is not None:
            streams = await asyncio.open_unix_connection(sock=first, limit=1 << 16)
            serving = asyncio.create_task(self._accept(*streams), name="first client")
            serving.add_done_callback(lambda _: self.attended())
            self._tasks.append(serving)
        await self._listen()
        self._tasks.append(asyncio.create_task(self._stay_reachable()))

    async def _listen(self) -> None:
        listening = self.listening.socket
        listening.setblocking(False)
        self._server = await asyncio.start_unix_server(self._accept, sock=listening, limit=1 << 16)

    def _leave_note(self) -> Path | None:
        """Note where the recorder is for this user's other machines."""
        if self.recording is None:
            return None
        name, nodes = self.listening.folder.name, list(self.hub.fleet.nodes)
        return registry.leave_note(name, self.recording.path, self.uid, self.label, nodes)

    async def _stay_reachable(self) -> None:
        """Listen in another folder when this one is removed, as a runtime folder is at its user's logout."""
        while True:
            if SOCKET not in self.listening.folder.names():
                try:
                    new = registry.Listening.open(registry.parent_folders(self.environ))
                except OSError as error:
                    _LOG.warning("commands don't reach this process: %s", error)
                else:
                    self._stop_listening()
                    self.listening = new
                    self._note = self._leave_note()
                    await self._listen()
            await asyncio.sleep(REACHABLE_EVERY_S)

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._note is not None:
            self._note.unlink(missing_ok=True)
        self.listening.close()

    async def close(self, report: Mapping[str, Any] | None = None) -> None:
        """Disconnect all clients and remove the socket; viewers get the report of the end, if any."""
        if self._server is not None:
            self._server.close()
        if report is not None:
            await self._viewers.end(report)
        for task in (*self._tasks, *self._clients):
            task.cancel()
        if self._clients:
            await asyncio.wait(self._clients, timeout=CLOSE_TIMEOUT_S)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._stop_listening()

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
            _LOG.exception("an import failed")
            self._refuse(writer, f"the running gswarm-tui failed to reply ({type(error).__name__})")
        finally:
            self._clients.discard(client)
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a client's requests until it leaves. Raises OSError, IncompleteReadError, MessageError."""
        client = Client(writer)
        try:
            while True:
                request = await read_message(reader, MAX_REQUEST)
                want = request.get("want") if request.get("version") == VERSION else None
                if want == "view":
                    self._viewers.add(client, request)
                elif want == "import" and self.recording is not None:
                    await serve_import(self.recording, request, reader, writer)
                    return
                else:
                    self._start(client, request)
        finally:
            self._viewers.remove(client)
            await client.end()

    def _start(self, client: Client, request: dict[str, Any]) -> None:
        """Start to answer a request, or cancel one. Raises MessageError."""
        cancelled, number = request.pop("cancel", None), request.pop("number", None)
        if cancelled is not None:
            if isinstance(cancelled, int) and cancelled in client.requests:
                client.requests[cancelled].cancel()
            return
        if not isinstance(number, int | None) or number in client.requests:
            raise MessageError("each request needs a number of its own")
        client.requests[number] = asyncio.create_task(self._respond(client, number, request))

    async def _respond(self, client: Client, number: int | None, request: dict[str, Any]) -> None:
        try:
            await self._answer(request, partial(client.reply, number), read_only=client.read_only)
        except OSError:
            _LOG.debug("a client left", exc_info=True)
        except Exception as error:
            _LOG.exception("a request failed")
            why = f"the running gswarm-tui failed to reply ({type(error).__name__})"
            await client.reply(number, encode({"error": why, "kind": "store"}))
        finally:
            del client.requests[number]

    async def _answer(self, request: dict[str, Any], send: Send, *, read_only: bool = False) -> None:
        """Send the replies to a request. Raises OSError when the client leaves."""
        try:
            if request.get("want") not in OF_ALL_VERSIONS and request.get("version") != VERSION:
                raise QueryError(f"the running gswarm-tui has another version, {__version__}")
            match request.get("want"):
                case "query":
                    await self._query(request, send)
                case "arrays":
                    await self._arrays(request, send)
                case "status":
                    path = None if self.recording is None else self.recording.path
                    await send(encode(head_status(self.hub, path, self.uid, self.label)))
                case "nodes":
                    await send(encode({"nodes": node_rows(self.hub)}))
                case "trace":
                    tracing = self.hub.tracing
                    await send(encode({} if tracing is None else tracing.state()))
                case "asked":
                    await send(encode({} if self.asking is None else self.asking.state()))
                case _ if read_only:
                    raise IntentError("this screen is read-only")
                case _:
                    await self._carry_out(request, send)
        except (QueryError, StoreError, IntentError) as error:
            kind = "query" if isinstance(error, (QueryError, IntentError)) else "store"
            await send(encode({"error": str(error), "kind": kind}))

    async def _carry_out(self, request: dict[str, Any], send: Send) -> None:
        """Carry out an intent and send its result. Raises IntentError."""
        if (intent := read_intent(request)) is None:
            raise IntentError("the running gswarm-tui doesn't know this request")
        result = self._executor.carry_out(intent)
        # The flush lets viewers show the change before the client has its reply.
        self.hub.flush()
        if isinstance(intent, StopSession) and intent.wait:
            result = await self._await_samples(result)
        if self.recording is not None:
            # The client may leave meanwhile, which must not cancel the commit itself.
            await asyncio.shield(asyncio.wrap_future(self.recording.commit()))
        if isinstance(intent, Detach):
            self.detach()
        try:
            await send(encode(result))
        finally:
            if isinstance(intent, StopRecording):
                self.end(intent.why)

    async def _await_samples(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return stopped sessions when the samples at their end are in, or after a limited time."""
        flushed = asyncio.Event()
        self.hub.flushed.append(flushed.set)
        try:
            async with asyncio.timeout(LAST_SAMPLE_S):
                while any(each["provisional"] for each in result["stopped"]):
                    await flushed.wait()
                    flushed.clear()
                    result = self._executor.stopped([each["session_id"] for each in result["stopped"]])
        except TimeoutError:
            pass
        finally:
            self.hub.flushed.remove(flushed.set)
        return result

    @staticmethod
    def _refuse(writer: asyncio.StreamWriter, reason: str) -> None:
        """Log a refusal and send it, whether or not the client still reads."""
        _LOG.warning("%s", reason)
        with contextlib.suppress(OSError, RuntimeError):
            writer.write(encode({"error": reason, "kind": "store"}))

    def _describe(self) -> dict[str, Any]:
        """Return what viewers have to know about the recording."""
        recording = self.recording
        return {
            "label": self.label,
            "job_id": self.job_id,
            "path": "" if recording is None else str(recording.path),
            "uid": self.uid,
            "recording_id": 0 if recording is None else recording.recording_id,
        }

    async def _query(self, request: dict[str, Any], send: Send) -> None:
        """Send the columns, the rows in batches, and an end. Raises QueryError, StoreError."""
        async with self._source(request) as (source, sql, values):
            result = await self._in_thread(lambda: source.query(sql, *values))
            await send(encode({"names": list(result.names), "types": list(result.types)}))
            messages = _row_messages(result)
            while message := await self._in_thread(lambda: next(messages, b"")):
                await send(message)
            await send(encode({"end": True}))

    async def _arrays(self, request: dict[str, Any], send: Send) -> None:
        """Send the whole result by column. Raises QueryError, StoreError."""
        async with self._source(request) as (source, sql, values):
            packed = self._in_thread(lambda: encode({"arrays": pack_arrays(source.arrays(sql, *values))}))
            try:
                message = await packed
            except MessageError as error:
                raise QueryError(f"the result is too long: {error}") from None
            await send(message)

    @contextlib.asynccontextmanager
    async def _source(self, request: dict[str, Any]) -> AsyncIterator[tuple[ArraySource, str, list[Any]]]:
        """Return the source that runs a request's query, its SQL and its values; cancel it at the end."""
        sql, values = request.get("sql"), request.get("values")
        if self.recording is None:
            raise QueryError("this gswarm-tui records nothing, so it can't run queries")
        if not isinstance(sql, str) or not isinstance(values, list):
            raise QueryError("a query needs SQL and values")
        if self._queries >= MAX_QUERIES:
            _LOG.warning("a query was refused: %d are running or queued", self._queries)
            raise QueryError(f"{self._queries} queries are running or queued; try again when one has ended")
        source = self.recording.queries()
        self._queries += 1
        try:
            yield source, sql, values
        finally:
            try:
                await self._in_thread(source.close)
            finally:
                self._queries -= 1

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def _row_messages(result: Result) -> Iterator[bytes]:
    """Yield the rows as messages. Raises QueryError, StoreError."""
    # Packing holds the interpreter's lock, and the recorder waits for it: so the first message has one row,
    # and each later one as many as the size of the one before it allows.
    count = 1
    for batch in result.batches:
        rows = batch
        while rows:
            part, rest = rows[:count], rows[count:]
            try:
                message = encode({"rows": part})
            except MessageError as error:
                if count == 1:
                    raise QueryError(f"a row of the result is too long: {error}") from None
                count = 1
                continue
            yield message
            rows = rest
            count = max(1, min(8 * count, len(part) * MESSAGE_BYTES // len(message)))
