"""What processes cost: CPU time and memory from /proc, and programs in a pseudo-terminal of their own."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used, without its children; raises FileNotFoundError when it is gone."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / TICKS


def threads_cpu_s(pid: int) -> float:
    """CPU seconds of the threads that a process has now, in nanoseconds' steps: ``cpu_s`` counts by 10 ms."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def children(pid: int) -> list[int]:
    """The processes that a process has started and that live."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


def rss_mib(pid: int) -> float:
    """Resident memory of a process now [MiB]."""
    return _status_mib(pid, "VmRSS")


def peak_mib(pid: int) -> float:
    """The most resident memory that a process had [MiB]."""
    return _status_mib(pid, "VmHWM")


def _status_mib(pid: int, field: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


def share_of_a_core(pid: int, seconds: float) -> float:
    """Percent of a core that a process uses over so many seconds from now."""
    began, before = time.monotonic(), cpu_s(pid)
    time.sleep(seconds)
    return 100 * (cpu_s(pid) - before) / (time.monotonic() - began)


class InTerminal:
    """A program in a pseudo-terminal of 200×60 or another size; everything that it writes is counted.

    ``writes`` holds the time and the size of each piece that it wrote.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        size: tuple[int, int] = (200, 60),
        env: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.began = time.monotonic()
        self.writes: list[tuple[float, int]] = []
        self.text = bytearray()
        self._changed = threading.Condition()
        environ = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **(env or {})}
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            if folder is not None:
                os.chdir(folder)
            os.execvpe(command[0], list(command), environ)
        columns, rows = size
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def _read(self) -> None:
        while True:
            select.select([self._terminal], [], [])
            try:
                data = os.read(self._terminal, 1 << 20)
            except OSError:
                data = b""
            with self._changed:
                if data:
                    self.writes.append((time.monotonic(), len(data)))
                    self.text += data
                self._changed.notify_all()
            if not data:
                return

    def press(self, keys: str) -> None:
        """Type so."""
        os.write(self._terminal, keys.encode())

    def wait_for(self, text: str, timeout_s: float = 60.0, *, since: int = 0) -> float:
        """Wait until it has written a text after so many bytes; when that was, in monotonic seconds."""
        wanted = text.encode()
        with self._changed:
            if not self._changed.wait_for(lambda: self.text.find(wanted, since) >= 0, timeout_s):
                raise TimeoutError(f"{text!r} was never written; the end is {bytes(self.text[-300:])!r}")
            return self.writes[-1][0]

    def wait_for_writing(self, since: int, timeout_s: float = 10.0) -> float:
        """Wait until it writes more than so many bytes; when that was."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.text) > since, timeout_s):
                raise TimeoutError("nothing was written")
            return self.writes[-1][0]

    def written_bytes(self, since: float, until: float) -> int:
        """How much it wrote between two monotonic times."""
        return sum(size for at, size in self.writes if since <= at < until)

    def end(self, timeout_s: float = 30.0) -> int:
        """End it, by force if it doesn't by itself; its exit status."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                break
            with self._changed:
                self._changed.wait(0.05)
        else:
            os.kill(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
        self._reader.join(5)
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(status)
