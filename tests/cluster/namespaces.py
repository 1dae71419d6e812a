"""Linux processes and namespaces: checks processes, and moves a command or this thread into a node."""

from __future__ import annotations

import ctypes
import os
import select
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_FS = 0x200
NEW = ("--mount", "--uts", "--ipc", "--pid", "--fork")
"""The namespaces that `unshare` creates for each node; the network's is created separately."""
_KINDS = ("net", "uts", "mnt")


@dataclass(frozen=True)
class ProcessId:
    """One process, identified by its pid and start time (clock ticks since boot)."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Return the running process with a pid. Raises ProcessLookupError."""
        started = _started(pid)
        if started is None:
            raise ProcessLookupError(f"there is no process {pid}")
        return cls(pid, started)

    def alive(self) -> bool:
        """Return whether it still runs (a zombie doesn't)."""
        return _started(self.pid) == self.started

    def kill(self, timeout: float = 10.0) -> None:
        """Kill the process and wait for its end. Raises TimeoutError after `timeout` seconds."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if not self.alive():
                return
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            if not select.select([handle], [], [], timeout)[0]:
                raise TimeoutError(f"process {self.pid} did not end within {timeout:g} s of SIGKILL")
        finally:
            os.close(handle)


def _started(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *rest = text.rpartition(")")[2].split()  # the command in parentheses may hold blanks
    # A first thread that has ended is a zombie as long as others of its process end, which still hold files.
    ended = state in "ZX" and len(_threads(pid)) <= 1
    return None if ended else int(rest[18])


def _threads(pid: int) -> list[str]:
    try:
        return [thread.name for thread in Path(f"/proc/{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def marked(variable: str, value: str) -> list[ProcessId]:
    """Return the processes with `variable=value` in their environment, without this one and its ancestors."""
    line = _ancestry(os.getpid())
    entry = f"{variable}={value}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        try:
            environment = (folder / "environ").read_bytes()
            if pid not in line and entry in environment.split(b"\0"):
                found.append(ProcessId.of(pid))
        except OSError:  # it ended meanwhile
            continue
    return found


def _ancestry(pid: int) -> set[int]:
    line = set()
    while pid:
        line.add(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return line


def command_line(process: ProcessId) -> str:
    """Return a process's command line; empty when it has ended."""
    try:
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace").strip()


def entering(pid: int, environment: Mapping[str, str], folder: str, *, as_process_of: bool) -> list[str]:
    """Return the command prefix that enters the namespaces of `pid`, with exactly that environment.

    With `as_process_of` it becomes a process of that PID namespace, too, and ends with it.
    """
    kinds = ["--net", "--uts", "--ipc", "--mount", *(["--pid"] if as_process_of else [])]
    variables = [f"{name}={value}" for name, value in environment.items()]
    clean = ["env", "--ignore-environment", f"--chdir={folder}", *variables]
    return ["nsenter", f"--target={pid}", *kinds, "--", *clean]


@contextmanager
def inside(pid: int) -> Iterator[None]:
    """Move this thread and its child processes into the network, mounts and host name of `pid`."""
    origin = [os.open(f"/proc/thread-self/ns/{kind}", os.O_RDONLY) for kind in _KINDS]
    target = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in _KINDS]
    try:
        # A thread that shares its working folder with others may not change its mount namespace.
        _call("unshare", _CLONE_FS)
        try:
            _enter(target)
            yield
        finally:
            _enter(origin)
    finally:
        for handle in origin + target:
            os.close(handle)


def _enter(handles: list[int]) -> None:
    folder = Path.cwd()
    for handle in handles:
        _call("setns", handle, 0)
    os.chdir(folder)  # a mount namespace is entered at its root


def _call(name: str, *arguments: int) -> None:
    if getattr(_LIBC, name)(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
