"""Traces of PyTorch processes, requested through Kineto's on-demand protocol.

Processes that were started with ``KINETO_USE_DAEMON`` send a datagram every 5 s to the socket ``dynolog`` in
the folder ``KINETO_IPC_SOCKET_DIR``. The reply is a configuration: what to trace, and where to write it. The
socket exists only while a trace is requested, in folders that no other user can enter.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import stat
import struct
import threading
import time
from contextlib import suppress

from gswarm_agent import wire
from gswarm_agent.asking.ranks import find_ranks
from gswarm_agent.folder import open_private
from gswarm_agent.trace import ENDPOINT
from gswarm_agent.wire_payload import TRACE_PART

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Mapping, Optional, Tuple

    from gswarm_agent.asking.ranks import LocalRank

POLL_S = 5.0
"""Every process asks for its configuration so often."""
ASKS_WITHIN_S = 2.4 * POLL_S
WRITES_WITHIN_S = 180.0
WARM_UP_S = 2
_TICK_S = 0.25
_HEADER = struct.Struct("<Q32s")  # payload's size, type
_CONTEXT = struct.Struct("<iiq")  # GPU, pid, job
_REQUEST = struct.Struct("<iiq")  # type, number of pids, job; then the pids, the process's own first
_PID = struct.Struct("<i")
_CREDENTIALS = struct.Struct("3i")
_IS_READY = 2
_LONGEST_DATAGRAM = 65536
_SHARED_TMP = "/tmp"  # noqa: S108  # Kineto writes here what it may not write elsewhere
NO_RANKS = "no process of yours here uses PyTorch or has a rank; or one hangs, so that ranks can't be found"


SILENT = (
    f"it didn't ask for a trace within {ASKS_WITHIN_S:.0f} s; start it with gswarm-tui record and PyTorch "
    "2.10 or later; or another trace of it is running, or it hangs"
)
"""Why a rank can't be traced, and the remedy."""


def config(request: wire.RequestTrace, path: str) -> str:
    """Return Kineto's configuration of a request; each process adds its pid to the file's name."""
    lines = [
        f"ACTIVITIES_LOG_FILE={path}",
        f"PROFILE_START_TIME={request.start_ns // 1_000_000}",
        f"ACTIVITIES_WARMUP_PERIOD_SECS={WARM_UP_S}",
        f"ACTIVITIES_DURATION_MSECS={request.duration_ms}",
    ]
    if request.stacks:
        lines.append("PROFILE_WITH_STACK=true")
    return "\n".join(lines) + "\n"


class _Endpoint:
    """Socket in one private folder, to which PyTorch processes send their requests."""

    def __init__(self, path: str) -> None:
        """Bind it. Raises OSError."""
        self.path = path
        self.folder = open_private(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        try:
            # The path as the process has it: on a datagram from another one, Kineto ends the process.
            self.socket.bind(f"{path}/{ENDPOINT}")
        except OSError:
            self.close()
            raise

    def receive(self) -> Optional[Tuple[bytes, int, str]]:
        """Return a datagram of this user's with its sender's pid and name; None if there is none."""
        while True:
            try:
                data, ancillary, _, sender = self.socket.recvmsg(
                    _LONGEST_DATAGRAM, socket.CMSG_SPACE(_CREDENTIALS.size)
                )
            except OSError:
                return None
            for level, kind, value in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                    pid, uid, _ = _CREDENTIALS.unpack(value[: _CREDENTIALS.size])
                    name = os.fsdecode(sender).rpartition("/")[2].rstrip("\0") if sender else ""
                    if uid == os.geteuid() and name:
                        return data, pid, name

    def send(self, kind: bytes, payload: bytes, name: str) -> bool:
        """Send a message to a socket in the folder; return whether it was taken."""
        try:
            self.socket.sendto(
                _HEADER.pack(len(payload), kind) + payload, f"/proc/self/fd/{self.folder}/{name}"
            )
        except OSError:
            return False
        return True

    def close(self) -> None:
        self.socket.close()
        os.close(self.folder)


class _TracedProcess:
    """A process that got a configuration, and the file that it writes."""

    def __init__(self, pid: int, rank: int, path: str, until: float) -> None:
        self.pid, self.rank, self.path, self.until = pid, rank, path, until
        self.state = wire.TRACE_REQUESTED
        self.size = -1
        self.checked_at = 0.0


class TraceRun:
    """One requested trace on this node: finds ranks, answers them, and hands out their files.

    ``handle_due`` has to be called at least every ``tick_s``; ``report`` gets each new fact.
    """

    tick_s = _TICK_S

    def __init__(
        self,
        request: wire.RequestTrace,
        selector: selectors.BaseSelector,
        report: Callable[[wire.TraceReport], None],
        job: Mapping[str, str],
        proc: str = "/proc",
    ) -> None:
        self.request = request
        self._selector = selector
        self._report_to = report
        self._job, self._proc = dict(job), proc
        self._started = time.monotonic()
        self._candidates: Optional[List[LocalRank]] = None
        self._endpoints: List[_Endpoint] = []
        self._problems: Dict[str, str] = {}
        self._traced: Dict[int, _TracedProcess] = {}
        self._reports: Dict[int, wire.TraceReport] = {}
        self._is_open = self._asked = False
        threading.Thread(target=self._scan, daemon=True).start()

    def _scan(self) -> None:
        """Find the processes, in a thread of its own: to read a process that hangs may take forever."""
        self._candidates = find_ranks(self._job, self._proc)

    def repeat_reports(self) -> None:
        """Report all facts again, to another recorder."""
        for report in self._reports.values():
            self._report_to(report)

    def handle_due(self) -> None:
        """Look for what has changed since the last call."""
        now = time.monotonic()
        if self._candidates is not None and not (self._is_open or self._asked):
            self._open_endpoints(self._candidates)
        if not self._asked and now - self._started > ASKS_WITHIN_S:
            self._asked = True
            self._report_silent()
        for process in self._traced.values():
            if process.state == wire.TRACE_REQUESTED and now - process.checked_at >= 2 * _TICK_S:
                self._look_for_file(process, now)

    def _open_endpoints(self, candidates: List[LocalRank]) -> None:
        self._is_open = True
        for path in sorted({c.environ.get("KINETO_IPC_SOCKET_DIR", "") for c in candidates} - {""}):
            try:
                endpoint = _Endpoint(path)
            except OSError as error:
                self._problems[path] = f"{path}: {error.strerror or error}"
                continue
            self._endpoints.append(endpoint)
            self._selector.register(
                endpoint.socket, selectors.EVENT_READ, lambda endpoint=endpoint: self._answer(endpoint)
            )
        if not candidates:
            self._asked = True
            self._report_silent()

    def _wanted(self, rank: Optional[int]) -> bool:
        return not self.request.ranks or rank in self.request.ranks

    def _answer(self, endpoint: _Endpoint) -> None:
        while (received := endpoint.receive()) is not None:
            data, pid, name = received
            if len(data) < _HEADER.size:
                continue
            kind, payload = _HEADER.unpack_from(data)[1].rstrip(b"\0"), data[_HEADER.size :]
            if kind == b"ctxt" and len(payload) >= _CONTEXT.size:
                endpoint.send(b"ctxt", _PID.pack(1 + len(self._traced)), name)
            elif kind == b"req" and len(payload) >= _REQUEST.size + _PID.size:
                ready, count, _ = _REQUEST.unpack_from(payload)
                (named,) = _PID.unpack_from(payload, _REQUEST.size)
                if count > 0:
                    self._configure(endpoint, pid, named, ready, name)

    def _configure(self, endpoint: _Endpoint, pid: int, named: int, ready: int, name: str) -> None:
        """Reply to a process with a configuration the first time, with nothing to do afterwards."""
        candidate = next((c for c in self._candidates or () if c.pid == pid), None)
        is_busy = self._asked or pid in self._traced or not ready & _IS_READY
        if candidate is None or is_busy or not self._wanted(candidate.rank):
            endpoint.send(b"req", b"", name)
            return
        folder = candidate.environ.get("KINETO_ONDEMAND_TRACE_DIR") or _SHARED_TMP
        stem = f"{folder}/gswarm-{self.request.token}"
        if endpoint.send(b"req", config(self.request, f"{stem}.json").encode(), name):
            late = max(0.0, self.request.start_ns / 1e9 - time.time()) + self.request.duration_ms / 1e3
            until = time.monotonic() + late + WRITES_WITHIN_S
            self._traced[pid] = _TracedProcess(pid, candidate.rank, f"{stem}_{named}.json", until)
            self._report(pid, candidate.rank, wire.TRACE_REQUESTED, "")

    def _report_silent(self) -> None:
        """Report each rank without a request once, and close the sockets when all ranks sent theirs."""
        ranks = {report.rank for report in self._reports.values()}
        found = self._candidates or []
        # A batch script has a rank, too.
        silent = [candidate for candidate in found if candidate.torch] or found
        for candidate in silent:
            if candidate.rank in ranks or not self._wanted(candidate.rank):
                continue
            ranks.add(candidate.rank)
            folder = candidate.environ.get("KINETO_IPC_SOCKET_DIR", "")
            why = self._problems.get(folder, SILENT)
            self._report(candidate.pid, candidate.rank, wire.TRACE_FAILED, why)
        self._close_endpoints()
        if not self._reports and not self.request.ranks:
            self._report(0, None, wire.TRACE_FAILED, NO_RANKS)
        else:
            self._report(0, None, wire.TRACE_ASKED, "")

    def _look_for_file(self, process: _TracedProcess, now: float) -> None:
        """Report a process's file as soon as it is whole: it ends with a brace and doesn't grow."""
        process.checked_at = now
        with suppress(OSError):
            descriptor = self._open(process)
            size = os.fstat(descriptor).st_size
            tail = os.pread(descriptor, 16, max(0, size - 16)).rstrip()
            os.close(descriptor)
            if size == process.size and tail.endswith(b"}"):
                process.state = wire.TRACE_READY
                self._report(process.pid, process.rank, wire.TRACE_READY, "", size)
            process.size = size
            return
        if not os.path.exists(f"{self._proc}/{process.pid}"):  # noqa: PTH110
            self._fail(process, "it ended before its trace was written")
        elif now > process.until:
            self._fail(process, f"it wrote no trace to {process.path}; its own messages may say why")

    def _fail(self, process: _TracedProcess, why: str) -> None:
        process.state = wire.TRACE_FAILED
        self._report(process.pid, process.rank, wire.TRACE_FAILED, why)

    @staticmethod
    def _open(process: _TracedProcess) -> int:
        """Open a process's trace. Raises OSError."""
        descriptor = os.open(process.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
            return descriptor
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    def part(self, pid: int, offset: int) -> Optional[wire.TracePart]:
        """Return a part of a process's file; None if it can't be read any more."""
        process = self._traced.get(pid)
        if process is None or process.state != wire.TRACE_READY:
            return None
        try:
            descriptor = self._open(process)
        except OSError as error:
            self._fail(process, f"its trace can't be read: {error.strerror}")
            return None
        try:
            return wire.TracePart(self.request.token, pid, offset, os.pread(descriptor, TRACE_PART, offset))
        finally:
            os.close(descriptor)

    def _report(self, pid: int, rank: Optional[int], state: str, why: str, size: int = 0) -> None:
        self._reports[pid] = wire.TraceReport(self.request.token, pid, rank, state, wire.clip_text(why), size)
        self._report_to(self._reports[pid])

    def _close_endpoints(self) -> None:
        for endpoint in self._endpoints:
            self._selector.unregister(endpoint.socket)
            with suppress(OSError):
                os.unlink(ENDPOINT, dir_fd=endpoint.folder)
            endpoint.close()
        self._endpoints.clear()

    def close(self) -> None:
        """Close the sockets and remove the traces from this node."""
        self._close_endpoints()
        for process in self._traced.values():
            with suppress(OSError):
                os.unlink(process.path)  # noqa: PTH108
