"""Finds programs on this node that use hardware counters, such as profilers, at negligible cost.

Each look reads the last process id that the kernel gave out: unless it changed, no process is new. New
processes are examined for two seconds, since a shell forks first and becomes the profiler afterwards. All
others are examined in small portions, for those that became a profiler late.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from gswarm_agent.probes.procfs import KeptFile, UserNames, parse_process_uid, read_start
from gswarm_agent.probes.rates import SECOND_NS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Sequence

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
_WITHOUT_COUNTERS = frozenset(
    (
        *("list", "report", "script", "annotate", "diff", "archive", "data", "evlist", "buildid-list"),
        *(
            "export",
            "stats",
            "analyze",
            "status",
            "sessions",
            "--import",
            "-i",
            "--list-sets",
            "--query-metrics",
        ),
        *("version", "help", "--version", "--help", "-v", "-h", "-a", "-e"),
    )
)
"""First arguments with which a profiler only reads files or prints what it knows."""
DCGM = "nv-hostengine"
AGENT = "gswarm-agent"
"""Name of an agent's process, see ``server.py``; another one counts for another recording."""
_AGES_NS = (0, SECOND_NS // 20, SECOND_NS // 5, SECOND_NS, 2 * SECOND_NS)
"""When to examine a new process, counted from the look that found it."""
_PORTION = 8
_FEW_BORN = 64
"""Processes that are examined by their ids; of more, /proc lists those that still run."""


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
    """Name, state, parent, process group and start time from /proc/PID/stat."""

    name: str
    state: str
    parent: int
    group: int
    started: int


class ProfilerWatch:
    """Finds profilers of all users. ``own_groups`` are process groups that don't count.

    ``dcgm`` is the pid of DCGM's host engine, None while none was seen.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self.own_groups: List[int] = []
        self.dcgm: Optional[int] = None
        self._proc = proc
        self._loadavg = KeptFile(f"{proc}/loadavg")
        self._users = UserNames()
        self._newest: Optional[int] = None
        self._young: Dict[int, List[int]] = {}  # pid and when to examine it again
        self._others: List[int] = []
        self._others_due = 0
        self._found: Optional[Profiler] = None

    def look(self, now_ns: int) -> Optional[Profiler]:
        """Return a profiler that runs now, None without one; ``now_ns`` is a monotonic time."""
        if self._found is not None:
            if self._examine(self._found.pid) == self._found:
                return self._found
            self._newest = None  # it ended: examine all, as another one may run
        if self._newest is None:
            return self.look_at_all(now_ns)
        self._note_young(now_ns)
        for pid, times in list(self._young.items()):
            if now_ns < times[0]:
                continue
            stat = self._stat(pid)
            if stat is not None and (found := self._profiler(pid, stat)) is not None:
                self._found = found
                return found
            del times[0]
            if stat is None or not times:
                del self._young[pid]
        return self._look_at_some(now_ns)

    def look_at_all(self, now_ns: int) -> Optional[Profiler]:
        """Return a profiler after all processes were examined, which takes some milliseconds."""
        self._newest = self._last_pid()
        self._others, self._others_due = [], now_ns + SECOND_NS
        self.dcgm = None
        all_found = [found for pid in self._pids() if (found := self._examine(pid)) is not None]
        self._found = all_found[0] if all_found else None
        return self._found

    def close(self) -> None:
        """Close the file."""
        self._loadavg.close()

    def _note_young(self, now_ns: int) -> None:
        before, self._newest = self._newest, self._last_pid()
        if before is None or self._newest is None or before == self._newest:
            return
        times = [now_ns + age for age in _AGES_NS]
        newest, restarted = self._newest, self._newest < before  # ids begin again from a low one
        born: Sequence[int] = range(before + 1, newest + 1)
        if restarted or len(born) > _FEW_BORN:
            born = [
                p for p in self._pids() if (p > before or p <= newest if restarted else before < p <= newest)
            ]
        for pid in born:
            self._young[pid] = list(times)

    def _look_at_some(self, now_ns: int) -> Optional[Profiler]:
        if now_ns < self._others_due:
            return None
        self._others_due = now_ns + SECOND_NS
        if not self._others:
            self._others = self._pids()
        portion, self._others = self._others[:_PORTION], self._others[_PORTION:]
        for pid in portion:
            if (found := self._examine(pid)) is not None:
                self._found = found
                return found
        return None

    def _last_pid(self) -> Optional[int]:
        try:
            return int(self._loadavg.read(128).split()[4])
        except (OSError, ValueError, IndexError):
            return None

    def _pids(self) -> List[int]:
        try:
            return [int(name) for name in os.listdir(self._proc) if name.isdigit()]
        except OSError:
            return []

    def _examine(self, pid: int) -> Optional[Profiler]:
        stat = self._stat(pid)
        return None if stat is None else self._profiler(pid, stat)

    def _stat(self, pid: int) -> Optional[_Stat]:
        return _parse_stat(read_start(f"{self._proc}/{pid}/stat"))

    def _profiler(self, pid: int, found: _Stat) -> Optional[Profiler]:
        if found.state in "ZX" or found.group in self.own_groups:
            return None
        if found.name == DCGM:
            self.dcgm = pid
        if found.name not in _NAMES and not found.name.startswith(_PREFIXES):
            return None
        words = read_start(f"{self._proc}/{pid}/cmdline").decode("utf-8", "replace").split("\0")
        if _first_argument(words, found.name) in _WITHOUT_COUNTERS:
            return None
        try:
            user = self._users.name(parse_process_uid(read_start(f"{self._proc}/{pid}/status")))
        except (ValueError, IndexError):
            return None  # it ended meanwhile
        parent = self._stat(found.parent)
        of_agent = parent is not None and parent.name == AGENT
        return Profiler(pid, f"{AGENT}'s {found.name}" if of_agent else found.name, user, found.started)


def _first_argument(words: List[str], name: str) -> str:
    """Return the first argument of a program, which may be a script after its interpreter."""
    own = next((at for at, word in enumerate(words) if os.path.basename(word).startswith(name)), 0)
    return words[own + 1] if own + 1 < len(words) else ""


def _parse_stat(text: bytes) -> Optional[_Stat]:
    try:
        begin, end = text.index(b"(") + 1, text.rindex(b")")
        fields = text[end + 1 :].split(None, 21)
        name = text[begin:end].decode("utf-8", "replace")
        parent, group, started = [int(fields[at]) for at in (1, 2, 19)]
        return _Stat(name, fields[0].decode("ascii", "replace"), parent, group, started)
    except (ValueError, IndexError):
        return None
