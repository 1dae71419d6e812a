"""The processes on the GPUs as /proc shows them: user, command, ranks, CPU, memory and disks."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

from gswarm_agent.probes.procfs import (
    ProcessStat,
    parse_command,
    parse_process_io,
    parse_process_stat,
    parse_process_uid,
    parse_ranks,
    read_start,
    user_name,
)
from gswarm_agent.probes.rates import SECOND_NS, Rate
from gswarm_agent.wire import MAX_MESSAGE, clip_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Collection, Dict, Optional, Sequence, Tuple, TypeAlias

    from gswarm_agent.frame import Number

_COMMAND_BYTES = 16 * 1024
"""Bytes of a command line that are read; it may have megabytes."""
_ENVIRON_BYTES = 6 * 1024 * 1024
"""Bytes of a process's variables that are read: Linux starts no process with more."""
_COMMAND_NS = 5 * SECOND_NS
"""Longest age of a command line: to read it, the kernel locks the process's own memory."""
_ALL_COMMANDS = MAX_MESSAGE // 8
"""Characters of the command lines of all processes together; each takes four bytes at most."""
_MB = 10**6
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

HostUsage: TypeAlias = "Tuple[Optional[Number], Optional[Number], Optional[Number], Optional[Number]]"
"""CPU %, resident MiB, MB/s read and written, as in the catalogue's process metrics."""


@dataclass(frozen=True)
class HostProcess:
    """A process as /proc shows it; None for details that are missing or hidden from this user."""

    user: Optional[str]
    command: Optional[str]
    rank: Optional[int]
    local_rank: Optional[int]
    usage: HostUsage


UNKNOWN = HostProcess(None, None, None, None, (None, None, None, None))
"""A process that /proc does not show: it has ended, or its pid belongs to another container."""


class _TrackedProcess:
    """A followed process: its constant facts and its rates."""

    def __init__(self, folder: str) -> None:
        self.user: Optional[str] = None
        self.rank: Optional[int] = None
        self.local_rank: Optional[int] = None
        self.stat: Optional[ProcessStat] = None
        self._folder = folder
        self._arguments = b""
        self._command: Optional[str] = None
        self._command_until = 0
        self._cpu, self._read, self._written = Rate(), Rate(), Rate()

    def open(self) -> None:
        """Read the process's files for the first time. Raises as ``parse_process_stat``."""
        self.stat = parse_process_stat(read_start(f"{self._folder}/stat"))
        status = read_start(f"{self._folder}/status")
        self.user = user_name(parse_process_uid(status)) if status else None
        # Only the owner and root may read this, and only the ranks' variables are used.
        self.rank, self.local_rank = parse_ranks(read_start(f"{self._folder}/environ", _ENVIRON_BYTES))

    def refresh(self) -> bool:
        """Read it again; False when the process has ended and its pid may be another's."""
        before = self.stat
        try:
            self.stat = parse_process_stat(read_start(f"{self._folder}/stat"))
        except (ValueError, LookupError):
            return False
        return before is not None and before.started == self.stat.started

    def command(self, longest: int, now_ns: int) -> Optional[str]:
        """Return its command line, which changes when it renames itself (workers of Ray and vLLM do)."""
        if now_ns >= self._command_until:
            self._command_until = now_ns + _COMMAND_NS
            arguments = read_start(f"{self._folder}/cmdline", _COMMAND_BYTES)
            if arguments != self._arguments:
                self._arguments = arguments
                command = parse_command(arguments)
                self._command = None if command is None else clip_text(command)
        return None if self._command is None else self._command[:longest]

    def usage(self, now_ns: int) -> HostUsage:
        """Return its use between the last two reads."""
        stat = self.stat or ProcessStat(0, 0, 0)
        bytes_read: Optional[int] = None
        bytes_written: Optional[int] = None
        with suppress(ValueError):  # only the owner and root may read it
            bytes_read, bytes_written = parse_process_io(read_start(f"{self._folder}/io"))
        return (
            _scaled(self._cpu.update(stat.cpu, now_ns), 100 / _TICKS_PER_SECOND),
            stat.resident * _PAGE >> 20,
            _scaled(self._read.update(bytes_read, now_ns), 1 / _MB),
            _scaled(self._written.update(bytes_written, now_ns), 1 / _MB),
        )


class ProcessTable:
    """Follows processes by pid in /proc; a process that reuses a pid is recognised by its start time.

    The kernel locks a process's memory to read its command line, so a process that hangs stops who reads it:
    ``enter`` is called with each pid before it is read.
    """

    def __init__(self, proc: str = "/proc", enter: Callable[[int], None] = lambda _: None) -> None:
        self._proc, self._enter = proc, enter
        self._tracked: Dict[int, _TrackedProcess] = {}

    def read(self, pids: Sequence[int], now_ns: int, skipped: Collection[int] = ()) -> Dict[int, HostProcess]:
        """Return the host's view of each process, and forget processes that are not among these.

        Those to skip are ``UNKNOWN``. The more processes, the shorter each command line, so that all of them
        fit into a frame.
        """
        for gone in self._tracked.keys() - (set(pids) - set(skipped)):
            del self._tracked[gone]
        longest = _ALL_COMMANDS // max(1, len(pids))
        return {pid: UNKNOWN if pid in skipped else self._read(pid, now_ns, longest) for pid in set(pids)}

    def _read(self, pid: int, now_ns: int, longest: int) -> HostProcess:
        self._enter(pid)
        process = self._tracked.get(pid)
        if process is None or not process.refresh():
            process = self._tracked[pid] = _TrackedProcess(f"{self._proc}/{pid}")
        try:
            if process.stat is None:
                process.open()
            return HostProcess(
                process.user,
                process.command(longest, now_ns),
                process.rank,
                process.local_rank,
                process.usage(now_ns),
            )
        except (ValueError, LookupError):
            del self._tracked[pid]
            return UNKNOWN


def _scaled(rate: Optional[float], factor: float) -> Optional[float]:
    return None if rate is None else rate * factor
