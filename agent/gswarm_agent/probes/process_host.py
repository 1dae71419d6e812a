"""The host's side of a process: who runs it, what it is, and what it uses, from /proc/PID."""

from __future__ import annotations

import os

from gswarm_agent.frame import Number
from gswarm_agent.frozen import dataclass
from gswarm_agent.probes.kept import KeptFile
from gswarm_agent.probes.procfs import (
    ProcessStat,
    parse_command,
    parse_process_io,
    parse_process_stat,
    parse_process_uid,
    parse_ranks,
)
from gswarm_agent.probes.rates import SECOND_NS, Rates
from gswarm_agent.wire import MAX_MESSAGE, clip_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional, Sequence, Tuple, TypeAlias

_LONGEST_COMMAND = 16 * 1024
"""Bytes that are looked at; a process may have megabytes."""
_COMMAND_NS = 5 * SECOND_NS
"""How old a command line may be: the kernel locks the process's own memory to read it."""
_ALL_COMMANDS = MAX_MESSAGE // 8
"""Characters that are told of all processes together; each takes four bytes at most."""
_KEPT_OPEN = 64
"""Processes whose files stay open, three each: a process may have few descriptors."""
_MB = 10**6
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

Usage: TypeAlias = "Tuple[Optional[Number], Optional[Number], Optional[Number], Optional[Number]]"


@dataclass(frozen=True)
class HostSide:
    """What the host knows of a process; None for what it doesn't, or doesn't tell this user.

    ``usage`` is CPU %, resident MiB, MB/s read and written, as in the catalogue's process metrics.
    """

    user: Optional[str]
    command: Optional[str]
    rank: Optional[int]
    local_rank: Optional[int]
    usage: Usage


UNKNOWN = HostSide(None, None, None, None, (None, None, None, None))
"""A process that isn't there for us: it ended, or its pid is of another container."""


class _Known:
    """One process: what doesn't change about it, its files and its rates."""

    def __init__(self, folder: str) -> None:
        self.user: Optional[str] = None
        self.rank: Optional[int] = None
        self.local_rank: Optional[int] = None
        self.stat: Optional[ProcessStat] = None
        self._folder = folder
        self._stat, self._cmdline, self._io = (
            KeptFile(f"{folder}/{name}") for name in ("stat", "cmdline", "io")
        )
        self._words = b""
        self._command: Optional[str] = None
        self._command_until = 0
        self._rates = Rates(3)

    def meet(self, users: Users) -> None:
        """Look at it for the first time. Raises OSError, and as ``parse_process_stat``."""
        self.stat = parse_process_stat(self._stat.read())
        status = _content(f"{self._folder}/status")
        self.user = None if status is None else users.name(parse_process_uid(status))
        # Closed to all but the owner and root, and only the names of ranks are looked at.
        self.rank, self.local_rank = parse_ranks(_content(f"{self._folder}/environ") or b"")

    def goes_on(self) -> bool:
        """Look at it again; False when the process has ended and its pid may be another's."""
        before = self.stat
        try:
            self.stat = parse_process_stat(self._stat.read())
        except (OSError, ValueError, LookupError):
            return False
        return before is not None and before.started == self.stat.started

    def command(self, longest: int, now_ns: int) -> Optional[str]:
        """Its command line, which changes when it renames itself (workers of Ray and vLLM do)."""
        if now_ns >= self._command_until:
            self._command_until = now_ns + _COMMAND_NS
            self._read_command()
        return None if self._command is None else self._command[:longest]

    def _read_command(self) -> None:
        try:
            words = self._cmdline.read(_LONGEST_COMMAND)
        except OSError:
            words = b""
        if words != self._words:
            self._words = words
            command = parse_command(words)
            self._command = None if command is None else clip_text(command)

    def usage(self, now_ns: int) -> Usage:
        """What it uses, by the last look at it and the one before."""
        stat = self.stat or ProcessStat(0, 0, 0)
        cpu_rate, read, written = self._rates.update((stat.cpu, *self._disk()), now_ns)
        return (
            _scaled(cpu_rate, 100 / _TICKS_PER_SECOND),
            stat.resident * _PAGE >> 20,
            _scaled(read, 1 / _MB),
            _scaled(written, 1 / _MB),
        )

    def _disk(self) -> Tuple[Optional[int], Optional[int]]:
        try:
            return parse_process_io(self._io.read())
        except OSError:  # closed to all but the owner and root
            return None, None

    def close(self) -> None:
        """Close its files; they are opened again where that is needed."""
        for file in (self._stat, self._cmdline, self._io):
            file.close()


class Users:
    """The names of users, each asked for once."""

    def __init__(self) -> None:
        self._names: Dict[int, str] = {}

    def name(self, uid: int) -> str:
        """A user's name, or the number where there is none."""
        if uid not in self._names:
            import pwd

            try:
                self._names[uid] = clip_text(pwd.getpwuid(uid).pw_name)
            except KeyError:
                self._names[uid] = str(uid)
        return self._names[uid]


class ProcessTable:
    """Follows the processes it is asked about; one that took over a pid is told by its start time."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._known: Dict[int, _Known] = {}
        self._users = Users()

    def look(self, pids: Sequence[int], now_ns: int) -> Dict[int, HostSide]:
        """The host's side of each process; those asked about before and not now are forgotten.

        The more there are the less of each command line is told, so that all of them fit into a frame.
        """
        before, self._known = self._known, {}
        longest = _ALL_COMMANDS // max(1, len(pids))
        for gone in before.keys() - set(pids):
            before[gone].close()
        return {pid: self._look(pid, before.get(pid), now_ns, longest) for pid in set(pids)}

    def _look(self, pid: int, known: Optional[_Known], now_ns: int, longest: int) -> HostSide:
        if known is None or not known.goes_on():
            if known is not None:
                known.close()
            known = _Known(f"{self._proc}/{pid}")
        try:
            if known.stat is None:
                known.meet(self._users)
            side = HostSide(
                known.user,
                known.command(longest, now_ns),
                known.rank,
                known.local_rank,
                known.usage(now_ns),
            )
        except (OSError, ValueError, LookupError):
            known.close()
            return UNKNOWN
        self._known[pid] = known
        if len(self._known) > _KEPT_OPEN:
            known.close()
        return side


def _content(path: str) -> Optional[bytes]:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # it ended, or it is another user's
        return None


def _scaled(rate: Optional[float], factor: float) -> Optional[float]:
    return None if rate is None else rate * factor
