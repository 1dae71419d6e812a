"""Finds programs on this node that use hardware counters, such as profilers, by their names.

To look at all processes takes some milliseconds, so that is done every five seconds.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from gswarm_agent.probes.procfs import UserNames, parse_process_uid, read_start
from gswarm_agent.probes.rates import SECOND_NS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

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
_ALL_NS = 5 * SECOND_NS
"""Interval of looking at all processes."""


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
        self._due = 0
        self._found: Optional[Profiler] = None

    def look(self, now_ns: int) -> Optional[Profiler]:
        """Return a profiler that runs, None without one; ``now_ns`` is a monotonic time."""
        before, self._found = self._found, None
        if before is not None and self._examine(before.pid) == before:
            self._found = before
        elif before is not None or now_ns >= self._due:
            self._due = now_ns + _ALL_NS
            self.look_at_all()
        return self._found

    def look_at_all(self) -> Optional[Profiler]:
        """Return a profiler after all processes were examined, which takes some milliseconds."""
        self.dcgm = None
        try:
            pids = [int(name) for name in os.listdir(self._proc) if name.isdigit()]
        except OSError:
            pids = []
        self._found = None
        for pid in pids:
            found = self._examine(pid)
            self._found = self._found or found
        return self._found

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
