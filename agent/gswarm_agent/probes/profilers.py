"""Finds programs on this node that use hardware counters, such as profilers, by their names.

To look at all processes takes some milliseconds, so that is done every five seconds.
"""

from __future__ import annotations

import os

from gswarm_agent.probes.procfs import parse_process_uid, read_start, user_name
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
_ALL_NS = 5 * SECOND_NS
"""Interval of looking at all processes."""


class ProfilerWatch:
    """Finds profilers of all users. ``own`` is a process that doesn't count, with its children."""

    def __init__(self, proc: str = "/proc") -> None:
        self.own: Optional[int] = None
        self._proc = proc
        self._due = 0
        self._found = ""

    def look(self, now_ns: int) -> str:
        """Return a profiler that ran at the latest look, empty if none did; ``now_ns`` is monotonic."""
        if now_ns >= self._due:
            self._due = now_ns + _ALL_NS
            self._found = self.look_at_all()
        return self._found

    def look_at_all(self) -> str:
        """Return a profiler that runs, empty if none does; this takes some milliseconds."""
        try:
            pids = [int(name) for name in os.listdir(self._proc) if name.isdigit()]
        except OSError:
            pids = []
        return next(filter(None, [self._examine(pid) for pid in pids]), "")

    def _examine(self, pid: int) -> str:
        """Return a profiler as part of a sentence, empty for any other process."""
        text = read_start(f"{self._proc}/{pid}/stat")
        try:
            end = text.rindex(b")")
            name = text[text.index(b"(") + 1 : end].decode("utf-8", "replace")
            state, parent, _ = text[end + 1 :].split(None, 2)
            if state in b"ZX" or self.own in (pid, int(parent)):
                return ""
            if name not in _NAMES and not name.startswith(_PREFIXES):
                return ""
            user = user_name(parse_process_uid(read_start(f"{self._proc}/{pid}/status")))
        except (ValueError, IndexError):  # it ended meanwhile
            return ""
        return f"{name} (pid {pid}) of {user}"
