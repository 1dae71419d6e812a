"""Attach: joins standard input and output to the recording's agent on this node, and starts it if need be.

The agent is a daemon made by two forks of this process: no second Python has to start before the first frame.
Nothing that takes long is imported for the same reason, and ``socket``, ``threading``, ``typing`` and
``contextlib`` do: longer than Python's own start. What the agent needs is imported by the agent.
"""

from __future__ import annotations

import _socket
import _thread
import os
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
_PATIENCE_S = 20.0
_LAST_WORDS_S = 2.0
_AGAIN_S = 0.02
_ENDING_S = 0.5
_GREETING_S = 5.0
_CHUNK = 65536
_KIND, _PIPE = 0o170000, 0o010000  # S_IFMT and S_IFIFO of stat(2)


def attach(name: str, top: str, serve: Serve, hold: bool = False) -> int:
    """Relay between the head and the agent of the recording ``name``. Returns an exit status.

    Before the agent speaks, it is said ``GSWARM-AT TOP``: in which folder that of the agent is. Where
    standard output is a pipe, the agent is given it and writes to it itself: to wake this process for each
    frame takes a tenth of what the frame does. An agent of before, which doesn't take it, is relayed.

    ``serve`` is what the agent does, called in its own process. With ``hold``, whoever started the agent
    stays until that has ended: with the last task of a Slurm step all of its processes end. SIGTERM, the
    end of the job, is handed on to the agent then, which Slurm may not know as part of the step.
    """
    try:
        connection, folder, started = _reach(name, tops(top), serve)
    except (FolderError, OSError) as error:
        print(f"gswarm-agent: {error}", file=sys.stderr)
        return 1
    if hold:
        import signal

        agent = peer_pid(connection)
        signal.signal(signal.SIGTERM, lambda number, _frame: _hand_on(agent, number))
    greeted, listened = _thread.allocate_lock(), _thread.allocate_lock()
    greeted.acquire()
    listened.acquire()
    _thread.start_new_thread(_relay_in, (connection, greeted, listened, hold))
    said = f"GSWARM-AT {folder.top}\n".encode()
    try:
        while True:
            data = connection.recv(_CHUNK)
            if not data:
                break
            _write(1, said + data)
            if said:
                said = b""
                greeted.release()
    except OSError:  # the agent or the head is gone
        pass
    connection.close()
    _leave_output()
    if hold and started:
        return _hold(folder)
    return _report_end(folder) if listened.locked() else 0


def report_end(name: str, top: str) -> int:
    """Say of an agent that just ended what ``attach`` would have said. Returns its exit status."""
    for place in tops(top):
        try:
            folder = Folder(place, name)
        except OSError:
            continue
        return _report_end(folder)
    return 0


def _report_end(folder: Folder) -> int:
    if not _was_killed(folder):
        return 0
    said = _last_line(folder.read(LOG))
    print("the agent on this node was killed" + (f": {said}" if said else ""), file=sys.stderr)
    return 1


def _reach(name: str, places: Sequence[str], serve: Serve) -> tuple[_socket.socket, Folder, bool]:
    """A connection to the agent, its folder, and whether it was started for this."""
    started = False
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        folder = Folder.find(places, name)
        try:
            return connect(folder), folder, started
        except (FileNotFoundError, ConnectionRefusedError):
            said = start(folder, serve)
        if said == READY:
            started = True
            continue
        if said != BUSY:
            raise FolderError(
                said.decode("utf-8", "replace") or f"the agent didn't start, see {folder.path}/log"
            )
        if time.monotonic() > deadline:
            raise FolderError(f"the agent in {folder.path} doesn't answer")
        folder.close()
        time.sleep(_AGAIN_S)


def connect(folder: Folder) -> _socket.socket:
    """A connection to who serves a folder. Raises OSError."""
    connection = _socket.socket(_socket.AF_UNIX)
    try:
        connection.connect(folder.address())
    except OSError:
        connection.close()
        raise
    return connection


def peer_pid(connection: _socket.socket) -> int:
    """The process at the other end of a connection."""
    import struct

    layout = struct.Struct("3i")
    pid, _, _ = layout.unpack(connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, layout.size))
    return int(pid)


def start(folder: Folder, serve: Serve) -> bytes:
    """Start the agent as a daemon: READY when it listens, BUSY where another one is, else a sentence."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _become_agent(folder, serve, writing)
    os.close(writing)
    os.waitpid(child, 0)
    with open(reading, "rb") as said:  # noqa: PTH123  # a descriptor
        return said.read()


def _become_agent(folder: Folder, serve: Serve, writing: int) -> NoReturn:
    """Never returns: whatever was on this process's stack is the other process's."""
    status = 1
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.umask(0o077)
        os.chdir("/")
        _leave_streams(folder, writing)
        try:
            lock = folder.lock()
            listener = None if lock is None else _listen(folder)
        except FileNotFoundError:  # the folder was removed by the agent that ended just now
            lock = listener = None
        except OSError as error:
            os.write(writing, f"the agent can't start in {folder.path}: {error.strerror}".encode())
            raise
        os.write(writing, BUSY if listener is None else READY)
        os.close(writing)
        if listener is not None:
            serve(folder, listener)
        status = 0
    except BaseException:  # there is nobody above; the log has to tell
        import traceback

        traceback.print_exc()
    finally:
        try:
            sys.stderr.flush()
        finally:
            os._exit(status)


def _leave_streams(folder: Folder, writing: int) -> None:
    """Keep nothing open of the connection, or it would not end; what is printed goes to the log."""
    kept = {writing, *folder.descriptors}
    nothing, log = os.open(os.devnull, os.O_RDWR), folder.open_log()
    for descriptor, source in ((0, nothing), (1, log), (2, log)):
        os.dup2(source, descriptor)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(name) > 2 and int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:  # the one that the folder was listed by
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
    connection: _socket.socket, greeted: _thread.LockType, listened: _thread.LockType, hold: bool
) -> None:
    """Hand on what the head says; ``greeted`` is locked until the agent has spoken, ``listened`` to the end.

    Standard output goes with the first of it, if it is a pipe: it becomes one that nobody waits for, which
    others who write to a terminal or a file wouldn't understand.
    """
    try:
        if _is_pipe() and (data := os.read(0, _CHUNK)):
            # What the agent has said by now comes before what it writes itself.
            if greeted.acquire(timeout=_GREETING_S):
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
    # The agent closes its side now. Where nobody reads what it said before, there is no use in waiting.
    time.sleep(_LAST_WORDS_S)
    if not hold:
        _leave_output()
        os._exit(0)
    listened.release()


def _is_pipe() -> bool:
    """Whether standard output is one."""
    return os.fstat(1).st_mode & _KIND == _PIPE


def _leave_output() -> None:
    """Whoever writes to standard output after this process waits for room, as before."""
    try:
        if _is_pipe():
            os.set_blocking(1, True)
    except OSError:
        pass


def _hand_on(agent: int, number: int) -> None:
    try:
        os.kill(agent, number)
    except ProcessLookupError:
        pass


def _hold(folder: Folder) -> int:
    """Stay until the agent has ended."""
    try:
        folder.lock(wait=True, create=False)
    except OSError:  # it took its folder along
        pass
    return 0


def _was_killed(folder: Folder) -> bool:
    """Whether the agent has ended without taking its socket along."""
    deadline = time.monotonic() + _ENDING_S
    try:
        while time.monotonic() < deadline:
            lock = folder.lock(create=False)
            if lock is not None:
                os.close(lock)
                return SOCKET in folder.names()
            time.sleep(_AGAIN_S)
    except OSError:  # it took its folder along
        pass
    return False


def _last_line(log: bytes) -> str:
    lines = log.decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
