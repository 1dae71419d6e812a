"""Attach: connects standard input and output to the recording's agent on this node, and starts it if needed.

The agent is a daemon forked twice from this process: no second Python has to start before the first frame.
For the same reason this module doesn't import ``socket``, ``threading``, ``typing`` and ``contextlib``,
which take longer than Python's own start. The agent imports what it needs itself.
"""

from __future__ import annotations

import _socket
import _thread
import os
import stat
import struct
import sys
import time

from gswarm_agent.folder import LOG, SOCKET, Folder, FolderError, tops

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    Serve = Callable[[Folder, socket.socket], None]

READY, BUSY = b"ready", b"busy"
_TIMEOUT_S = 20.0
_BYE_S = 2.0
_RETRY_S = 0.02
_ENDING_S = 0.5
_FIRST_BYTES_S = 5.0
_CHUNK = 65536


def attach(name: str, top: str, serve: Serve, hold: bool = False) -> int:
    """Relay between the head and the agent in the folder ``name``. Returns an exit status.

    The line ``GSWARM-AT TOP`` before the agent's first bytes names the folder above its own. If standard
    output is a pipe, the agent gets it and writes to it directly, because waking this process for each
    frame costs a tenth of the frame. The bytes of an older agent, which doesn't take the pipe, are relayed.

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
        import signal

        agent, _ = peer(connection)
        signal.signal(signal.SIGTERM, lambda number, _frame: _forward_signal(agent, number))
    agent_silent, input_open = _thread.allocate_lock(), _thread.allocate_lock()
    agent_silent.acquire()
    input_open.acquire()
    _thread.start_new_thread(_relay_in, (connection, agent_silent, input_open, hold))
    preamble = f"GSWARM-AT {folder.top}\n".encode()
    try:
        while True:
            data = connection.recv(_CHUNK)
            if not data:
                break
            _write(1, preamble + data)
            if preamble:
                preamble = b""
                agent_silent.release()
    except OSError:  # the agent or the head is gone
        pass
    connection.close()
    _restore_output()
    if hold and started:
        return _wait_for_agent(folder)
    return _report_end(folder) if input_open.locked() else 0


def report_end(name: str, top: str) -> int:
    """Print why an agent ended, as ``attach`` would have. Returns the exit status of ``attach``."""
    for path in tops(top):
        try:
            folder = Folder(path, name)
        except OSError:
            continue
        return _report_end(folder)
    return 0


def _report_end(folder: Folder) -> int:
    if not _was_killed(folder):
        return 0
    line = _last_line(folder.read(LOG))
    print("the agent on this node was killed" + (f": {line}" if line else ""), file=sys.stderr)
    return 1


def _connect_or_start(name: str, tops: Sequence[str], serve: Serve) -> tuple[_socket.socket, Folder, bool]:
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


def connect(folder: Folder, timeout_s: float = _TIMEOUT_S) -> _socket.socket:
    """Return a connection to the process that serves a folder.

    Raises:
        TimeoutError: the process accepts no connections, and those that wait fill its queue.
        OSError: no process serves the folder.
    """
    connection = _socket.socket(_socket.AF_UNIX)
    layout = struct.Struct("@ll")  # struct timeval: seconds and microseconds
    limit = layout.pack(int(timeout_s), int(timeout_s % 1 * 1e6))
    try:
        # Not a timeout of Python's: its socket would be non-blocking, and a full queue an error at once.
        connection.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDTIMEO, limit)
        connection.connect(folder.address())
        connection.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDTIMEO, bytes(layout.size))
    except BlockingIOError:
        connection.close()
        raise TimeoutError(f"the process that serves {folder.path} doesn't answer") from None
    except OSError:
        connection.close()
        raise
    return connection


def peer(connection: _socket.socket) -> tuple[int, int]:
    """Return the process ID and the user ID at the other end of a connection."""
    layout = struct.Struct("3i")
    pid, uid, _ = layout.unpack(connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, layout.size))
    return pid, uid


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
    nothing, log = os.open(os.devnull, os.O_RDWR), folder.open_log()
    for descriptor, source in ((0, nothing), (1, log), (2, log)):
        os.dup2(source, descriptor)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(name) > 2 and int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:  # the descriptor of the listing itself
                pass


def _listen(folder: Folder) -> socket.socket:
    import socket

    folder.unlink(SOCKET)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(folder.address())
    listener.listen()
    listener.setblocking(False)
    return listener


def _relay_in(
    connection: _socket.socket, agent_silent: _thread.LockType, input_open: _thread.LockType, hold: bool
) -> None:
    """Relay the head's bytes to the agent.

    ``agent_silent`` is locked until its first bytes came, ``input_open`` while the head may send more.

    Standard output goes along with the first bytes if it is a pipe. The agent sets it to non-blocking, which
    other programs that write to a terminal or a file wouldn't expect.
    """
    try:
        if _is_pipe() and (data := os.read(0, _CHUNK)):
            # The bytes that were relayed so far come before those that the agent writes itself.
            if agent_silent.acquire(timeout=_FIRST_BYTES_S):
                given = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, (1).to_bytes(4, sys.byteorder))
                data = data[connection.sendmsg([data], [given]) :]
            connection.sendall(data)
        while True:
            data = os.read(0, _CHUNK)
            if not data:
                break
            connection.sendall(data)
    except OSError:  # the agent is gone
        pass
    try:
        connection.shutdown(_socket.SHUT_WR)
    except OSError:
        pass
    # The agent closes its side now; don't wait for long if nobody reads its last bytes.
    time.sleep(_BYE_S)
    if not hold:
        _restore_output()
        os._exit(0)
    input_open.release()


def _is_pipe() -> bool:
    """Return whether standard output is a pipe."""
    return stat.S_ISFIFO(os.fstat(1).st_mode)


def _restore_output() -> None:
    """Set standard output back to blocking, for programs that write to it afterwards."""
    try:
        if _is_pipe():
            os.set_blocking(1, True)
    except OSError:
        pass


def _forward_signal(agent: int, number: int) -> None:
    try:
        os.kill(agent, number)
    except ProcessLookupError:
        pass


def _wait_for_agent(folder: Folder) -> int:
    """Wait until the agent has ended."""
    try:
        folder.lock(wait=True, create=False)
    except OSError:  # the agent has removed its folder
        pass
    return 0


def _was_killed(folder: Folder) -> bool:
    """Return whether the agent has ended without removing its socket."""
    deadline = time.monotonic() + _ENDING_S
    try:
        while time.monotonic() < deadline:
            lock = folder.lock(create=False)
            if lock is not None:
                os.close(lock)
                return SOCKET in folder.names()
            time.sleep(_RETRY_S)
    except OSError:  # the agent has removed its folder
        pass
    return False


def _last_line(log: bytes) -> str:
    lines = log.decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
