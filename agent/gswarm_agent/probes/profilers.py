"""Finds programs on this node that use hardware counters, such as profilers, at negligible cost.

Each look reads the last process id that the kernel gave out: unless it changed, no process is new. New
processes are examined for two seconds, since a shell forks first and becomes the profiler afterwards. All are
examined once a minute, for those that became a profiler late.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from gswarm_agent.probes.procfs import UserNames, parse_process_uid, read_start
from gswarm_agent.probes.rates import SECOND_NS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional

_NAMES = frozenset(
    (
        *("perf", "likwid-perfctr", "likwid-accessD", "likwid-perfscop", "likwid-mpirun"),
        *("nsys", "ncu", "nv-nsight-cu-cl", "vtune", "amplxe-perf", "AMDuProfCLI", "AMDuProfPcm"),
        *("pcm", "pcm-memory", "toplev", "hpcrun", "rocprof", "rocprofv3"),
    )
)
"""Names of processes, at most 15 characters as the kernel cuts them."""
_PREFIXES = ("perf_", "perf-")
"""Debian's versions of perf are ``perf_6.1`` and the like."""
DCGM = "nv-hostengine"
AGENT = "gswarm-agent"
"""Name of an agent's process, see ``server.py``; another one counts for another recording."""
_YOUNG_NS, _ALL_NS = 2 * SECOND_NS, 60 * SECOND_NS
"""How long a new process is examined at each look, and the interval of examining all."""
_FEW_BORN = 64
"""New processes that are examined by their ids; if there are more, all are examined."""


@dataclass(frozen=True)
class Profiler:
    """A process that uses counters."""

    pid: int
    name: str
    user: str
    started: int

    def __str__(self) -> str:
        """Return it as part of a sentence."""
        return f"{self.name} (pid {self.pid}) of {self.user}"


@dataclass(frozen=True)
class _Stat:
    """Name, state, parent and start time from /proc/PID/stat."""

    name: str
    state: str
    parent: int
    started: int


class ProfilerWatch:
    """Finds profilers of all users. ``own`` is a process that doesn't count, with its children.

    ``dcgm`` is the pid of DCGM's host engine, None while none was seen.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self.own: Optional[int] = None
        self.dcgm: Optional[int] = None
        self._proc = proc
        self._users = UserNames()
        self._newest: Optional[int] = None
        self._young: Dict[int, int] = {}  # pid and until when it is examined
        self._all_due = 0
        self._found: Optional[Profiler] = None

    def look(self, now_ns: int) -> Optional[Profiler]:
        """Return a profiler that runs now, None without one; ``now_ns`` is a monotonic time."""
        if self._found is not None:
            if self._examine(self._found.pid) == self._found:
                return self._found
            return self.look_at_all(now_ns)  # it ended, and another one may run
        before, newest = self._newest, self._last_pid()
        # Without the last id, or after ids began again from a low one, the new processes are unknown.
        if (
            before is None
            or newest is None
            or not 0 <= newest - before <= _FEW_BORN
            or now_ns >= self._all_due
        ):
            return self.look_at_all(now_ns)
        self._newest = newest
        self._young.update(dict.fromkeys(range(before + 1, newest + 1), now_ns + _YOUNG_NS))
        for pid, until in list(self._young.items()):
            self._found = self._examine(pid)
            if self._found is not None:
                return self._found
            if now_ns >= until:
                del self._young[pid]
        return None

    def look_at_all(self, now_ns: int) -> Optional[Profiler]:
        """Return a profiler after all processes were examined, which takes some milliseconds."""
        self._newest, self._all_due = self._last_pid(), now_ns + _ALL_NS
        self.dcgm = None
        try:
            pids = [int(name) for name in os.listdir(self._proc) if name.isdigit()]
        except OSError:
            pids = []
        all_found = [found for pid in pids if (found := self._examine(pid)) is not None]
        self._found = all_found[0] if all_found else None
        return self._found

    def _last_pid(self) -> Optional[int]:
        try:
            return int(read_start(f"{self._proc}/loadavg").split()[4])
        except (ValueError, IndexError):
            return None

    def _stat(self, pid: int) -> Optional[_Stat]:
        return _parse_stat(read_start(f"{self._proc}/{pid}/stat"))

    def _examine(self, pid: int) -> Optional[Profiler]:
        found = self._stat(pid)
        if found is None or found.state in "ZX" or self.own in (pid, found.parent):
            return None
        if found.name == DCGM:
            self.dcgm = pid
        if found.name not in _NAMES and not found.name.startswith(_PREFIXES):
            return None
        try:
            user = self._users.name(parse_process_uid(read_start(f"{self._proc}/{pid}/status")))
        except (ValueError, IndexError):
            return None  # it ended meanwhile
        parent = self._stat(found.parent)
        of_agent = parent is not None and parent.name == AGENT
        return Profiler(pid, f"{AGENT}'s {found.name}" if of_agent else found.name, user, found.started)


def _parse_stat(text: bytes) -> Optional[_Stat]:
    try:
        begin, end = text.index(b"(") + 1, text.rindex(b")")
        fields = text[end + 1 :].split(None, 21)
        name = text[begin:end].decode("utf-8", "replace")
        parent, started = int(fields[1]), int(fields[19])
        return _Stat(name, fields[0].decode("ascii", "replace"), parent, started)
    except (ValueError, IndexError):
        return None
