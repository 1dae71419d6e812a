"""Attach: connects standard input and output to the recording's agent on this node, and starts it if needed.

The agent is a daemon forked twice from this process: no second Python has to start before the first frame.
Other processes on the node send it short requests: ``status``, and marks (``mark.py``). Training loops do, so
this module is quick to import.
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import struct
import sys
import time

from gswarm_agent.folder import LOCK, LOG, SOCKET, Folder, FolderError, folders, tops

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

    Serve = Callable[[Folder, socket.socket], None]

READY, BUSY = b"ready", b"busy"
STATUS = b"?"
"""The whole request for the status; the agent replies with JSON after the wire's first line."""
MARK = b"!"
"""The first byte of a request with a mark; a JSON object and a line break follow."""
LONGEST_REQUEST = 64 * 1024
_TIMEOUT_S = 20.0
_REPLY_S = 10.0
_BYE_S = 2.0
_RETRY_S = 0.02
_CHUNK = 65536


def attach(name: str, top: str, serve: Serve, hold: bool = False) -> int:
    """Relay between the recorder and the agent in the folder ``name``. Returns an exit status.

    ``serve`` runs the agent, in its own process. With ``hold``, the process that started the agent stays
    until the agent has ended, because all processes of a Slurm step end with its last task. It passes
    SIGTERM, the end of the job, on to the agent, which Slurm may not know as part of the step.
    """
    try:
        connection, folder, started = _connect_or_start(name, tops(top), serve)
    except (FolderError, OSError) as error:
        print(f"gswarm-agent: {error}", file=sys.stderr)
        return 1
    if hold:
        agent, _ = peer(connection)

        def forward(number: int, _frame: object) -> None:
            try:
                os.kill(agent, number)
            except ProcessLookupError:
                pass

        signal.signal(signal.SIGTERM, forward)
    try:
        head_left = _relay(connection)
    except OSError:  # the agent or the recorder is gone
        head_left = False
    connection.close()
    if hold and started:
        try:
            folder.lock(wait=True, create=False)
        except OSError:  # the agent has removed its folder
            pass
        return 0
    if not head_left:  # shown unless the agent has sent a bye
        print("its process on the node was killed or failed", file=sys.stderr)
    return 0


def _relay(connection: socket.socket) -> bool:
    """Relay until the agent closes the connection; return whether the head's input ended first.

    The agent closes its side when the head has; nobody waits long for it if the head reads nothing any more.
    """
    inputs: list[int] = [0, connection.fileno()]
    until = math.inf
    while time.monotonic() < until:
        wait_s = None if until == math.inf else until - time.monotonic()
        ready, _, _ = select.select(inputs, [], [], wait_s)
        if connection.fileno() in ready:
            data = connection.recv(_CHUNK)
            if not data:
                break
            _write(1, data)
        if 0 in ready:
            data = os.read(0, _CHUNK)
            if data:
                connection.sendall(data)
            else:
                inputs.remove(0)
                connection.shutdown(socket.SHUT_WR)
                until = time.monotonic() + _BYE_S
    return 0 not in inputs


def _connect_or_start(name: str, tops: Sequence[str], serve: Serve) -> tuple[socket.socket, Folder, bool]:
    """Return a connection to the agent, its folder, and whether this call started it."""
    started = False
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        folder = Folder.find(tops, name)
        try:
            return connect(folder), folder, started
        except (FileNotFoundError, ConnectionRefusedError):
            outcome = start(folder, serve)
        if outcome == READY:
            started = True
            continue
        if outcome != BUSY:
            raise FolderError(
                outcome.decode("utf-8", "replace") or f"the agent didn't start, see {folder.path}/log"
            )
        if time.monotonic() > deadline:
            raise FolderError(f"the agent in {folder.path} doesn't answer")
        folder.close()
        time.sleep(_RETRY_S)


def connect(folder: Folder) -> socket.socket:
    """Return a connection to the process that serves a folder.

    Raises:
        TimeoutError: the process accepts no connections, and those that wait fill its queue.
        OSError: no process serves the folder.
    """
    connection = socket.socket(socket.AF_UNIX)
    # A socket that blocks would wait without a limit for room in the queue.
    connection.setblocking(False)
    try:
        connection.connect(folder.address())
        connection.setblocking(True)
    except BlockingIOError:
        connection.close()
        raise TimeoutError(f"the process that serves {folder.path} doesn't answer") from None
    except OSError:
        connection.close()
        raise
    return connection


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return the process ID and the user ID at the other end of a connection."""
    layout = struct.Struct("3i")
    pid, uid, _ = layout.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size))
    return pid, uid


def is_own(connection: socket.socket) -> bool:
    """Return whether the process at the other end belongs to this user."""
    _, uid = peer(connection)
    return uid == os.geteuid()


def send_request(connection: socket.socket, request: bytes, timeout_s: float = _REPLY_S) -> Any:
    """Send a request to an agent and return its reply. Raises OSError, and ValueError if it isn't JSON."""
    import json

    connection.settimeout(timeout_s)
    connection.sendall(request)
    reply = b""
    while True:
        data = connection.recv(65536)
        if not data:
            break
        reply += data
    _, _, text = reply.partition(b"\n")  # the wire's first line comes before it
    return json.loads(text)


def status(recording: str = "", top: str = "") -> list[dict[str, Any]]:
    """Return an entry for each recording, or for one: its uid, node name, agent's pid, and waiting frames.

    ``pid`` is None if no agent runs. ``lives`` have the waiting frames of each life (see ``Spool.waiting``).
    """
    entries = []
    for folder in folders(tops(top)):
        uid, _, node = folder.name.partition("@")
        if LOCK in folder.names() and recording in ("", uid):
            entries.append({"recording": uid, "node": node, **_status_of(folder)})
    return entries


def _status_of(folder: Folder) -> dict[str, Any]:
    try:
        with connect(folder) as connection:
            pid, _ = peer(connection)
            return {"pid": pid, "lives": send_request(connection, STATUS)}
    except (OSError, ValueError):
        pass
    from gswarm_agent.spool import Spool

    return {"pid": None, "lives": Spool(folder).waiting()}


def start(folder: Folder, serve: Serve) -> bytes:
    """Start the agent as a daemon; return READY, BUSY if another agent runs, else an error message."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _become_agent(folder, serve, writing)
    os.close(writing)
    os.waitpid(child, 0)
    with open(reading, "rb") as outcome:  # noqa: PTH123  # a descriptor
        return outcome.read()


def _become_agent(folder: Folder, serve: Serve, writing: int) -> NoReturn:
    """Become the agent; never returns, because this process's stack belongs to its parent."""
    status = 1
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.umask(0o077)
        os.chdir("/")
        _redirect_streams(folder, writing)
        try:
            lock = folder.lock()
            listener = None if lock is None else _listen(folder)
        except FileNotFoundError:  # an agent that just ended has removed its folder
            lock = listener = None
        except OSError as error:
            os.write(writing, f"the agent can't start in {folder.path}: {error.strerror}".encode())
            raise
        os.write(writing, BUSY if listener is None else READY)
        os.close(writing)
        if listener is not None:
            serve(folder, listener)
        status = 0
    except BaseException:  # no caller is left to handle it: log it
        import traceback

        traceback.print_exc()
    finally:
        try:
            sys.stderr.flush()
        finally:
            os._exit(status)


def _redirect_streams(folder: Folder, writing: int) -> None:
    """Print to the log from now on, and close other descriptors: open ones would keep the connection open."""
    kept = {writing, *folder.descriptors}
    nothing, log = os.open(os.devnull, os.O_RDWR), folder.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor, source in ((0, nothing), (1, log), (2, log)):
        os.dup2(source, descriptor)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(name) > 2 and int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:  # the descriptor of the listing itself
                pass


def _listen(folder: Folder) -> socket.socket:
    folder.unlink(SOCKET)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(folder.address())
    listener.listen()
    listener.setblocking(False)
    return listener


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
