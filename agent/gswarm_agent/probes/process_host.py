"""The host's side of a process: who runs it, what it is, and what it uses, from /proc/PID."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Dict, NamedTuple, Optional, Sequence, Tuple

from gswarm_agent.frame import Number
from gswarm_agent.probes.procfs import (
    parse_command,
    parse_process_io,
    parse_process_stat,
    parse_process_uid,
    parse_ranks,
)
from gswarm_agent.probes.rates import Rate
from gswarm_agent.wire import MAX_MESSAGE, clip_text

_LONGEST_COMMAND = 16 * 1024
"""Bytes that are looked at; a process may have megabytes."""
_ALL_COMMANDS = MAX_MESSAGE // 8
"""Characters that are told of all processes together; each takes four bytes at most."""
_MB = 10**6
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class HostSide(NamedTuple):
    """What the host knows of a process; None for what it doesn't, or doesn't tell this user.

    ``usage`` is CPU %, resident MiB, MB/s read and written, as in the catalogue's process metrics.
    """

    user: Optional[str]
    command: Optional[str]
    rank: Optional[int]
    local_rank: Optional[int]
    usage: Tuple[Optional[Number], Optional[Number], Optional[Number], Optional[Number]]


UNKNOWN = HostSide(None, None, None, None, (None, None, None, None))
"""A process that isn't there for us: it ended, or its pid is of another container."""


class _Known:
    """What doesn't change about one process, and its rates."""

    def __init__(self, folder: Path, started: int, user: Optional[str]) -> None:
        self.started = started
        self.user = user
        # Closed to all but the owner and root, and only the names of ranks are looked at.
        self.rank, self.local_rank = parse_ranks(_content(folder / "environ") or b"")
        self._cmdline = b""
        self._command: Optional[str] = None
        self.cpu, self.read, self.written = Rate(), Rate(), Rate()

    def command(self, cmdline: bytes) -> Optional[str]:
        """Its command line, which changes when it renames itself (workers of Ray and vLLM do)."""
        if cmdline != self._cmdline:
            self._cmdline = cmdline
            self._command = parse_command(cmdline)
        return self._command


class ProcessTable:
    """Follows the processes it is asked about; one that took over a pid is told by its start time."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._known: Dict[int, _Known] = {}
        self._users: Dict[int, str] = {}

    def look(self, pids: Sequence[int], now_ns: int) -> Dict[int, HostSide]:
        """The host's side of each process; those asked about before and not now are forgotten.

        The more there are the less of each command line is told, so that all of them fit into a frame.
        """
        before, self._known = self._known, {}
        longest = _ALL_COMMANDS // max(1, len(pids))
        return {pid: self._look(pid, before.get(pid), now_ns, longest) for pid in set(pids)}

    def _look(self, pid: int, known: Optional[_Known], now_ns: int, longest: int) -> HostSide:
        folder = self._proc / str(pid)
        try:
            stat = parse_process_stat(_content(folder / "stat") or b"")
            if known is None or known.started != stat.started:
                known = _Known(folder, stat.started, self._user(folder))
            resident = int((_content(folder / "statm") or b"").split()[1]) * _PAGE >> 20
        except (ValueError, LookupError):
            return UNKNOWN
        self._known[pid] = known
        command = known.command(_content(folder / "cmdline", _LONGEST_COMMAND) or b"")
        io = _content(folder / "io")  # closed to all but the owner and root
        read, written = (None, None) if io is None else parse_process_io(io)
        return HostSide(
            known.user,
            None if command is None else clip_text(command[:longest]),
            known.rank,
            known.local_rank,
            (
                _scaled(known.cpu.update(stat.cpu, now_ns), 100 / _TICKS_PER_SECOND),
                resident,
                _scaled(known.read.update(read, now_ns), 1 / _MB),
                _scaled(known.written.update(written, now_ns), 1 / _MB),
            ),
        )

    def _user(self, folder: Path) -> Optional[str]:
        status = _content(folder / "status")
        if status is None:
            return None
        uid = parse_process_uid(status)
        if uid not in self._users:
            self._users[uid] = _user_name(uid)
        return self._users[uid]


def _user_name(uid: int) -> str:
    import pwd

    try:
        return clip_text(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return str(uid)


def _content(path: Path, most: int = -1) -> Optional[bytes]:
    try:
        with path.open("rb") as file:
            return file.read(most)
    except OSError:  # it ended, or it is another user's
        return None


def _scaled(rate: Optional[float], factor: float) -> Optional[float]:
    return None if rate is None else rate * factor
