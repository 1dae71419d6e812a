"""Counters of single processes on GPUs, such as the ranks of a job, with one ``perf stat -p`` for each.

They need fewer rights than those of a whole node: on most systems users may count their own processes,
without the time that these spend in the kernel.
"""

from __future__ import annotations

import os

from gswarm_agent.metrics import COUNTERS, PROCESS_METRICS
from gswarm_agent.probes.counter_tools import (
    RETRY_NS,
    SILENT_NS,
    STALE_NS,
    Perf,
    ToolError,
    ToolProcess,
    find_perf,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Sequence, Tuple

    from gswarm_agent.frame import Row

PROCESS_COUNTERS: Tuple[str, ...] = tuple(m.name for m in PROCESS_METRICS if m.group == COUNTERS)
"""The last of PROCESS_COLUMNS."""
_MOST = 16
"""Processes of a node that are counted: more than the ranks of a node with eight GPUs."""


class ProcessCounters:
    """Counts this user's processes, the first ones if there are many."""

    def __init__(self) -> None:
        self._counted: Dict[int, Tuple[ToolProcess, Perf]] = {}
        self._retry_at: Dict[int, int] = {}
        self._last: Dict[int, Row] = {}
        self._heard_at: Dict[int, int] = {}

    @property
    def pids(self) -> List[int]:
        """The process ids of the tools, which are also those of their groups."""
        return [process.pid for process, _ in self._counted.values()]

    def read(self, pids: Sequence[int], now_ns: int) -> Dict[int, Row]:
        """Return values of PROCESS_COUNTERS by pid; begin to count new processes, and end others."""
        wanted = set(pids)
        for pid in self._counted.keys() - wanted:
            self._end(pid)
        self._retry_at = {pid: at for pid, at in self._retry_at.items() if pid in wanted and now_ns < at}
        new = wanted - self._counted.keys() - self._retry_at.keys()
        for pid in sorted(new)[: _MOST - len(self._counted)]:
            self._begin(pid, now_ns)
        for pid in list(self._counted):
            try:
                self._take(pid, now_ns)
            except ToolError:
                self._retry_at[pid] = now_ns + RETRY_NS
                self._end(pid)
        return dict(self._last)

    def close(self) -> None:
        """End all tools."""
        for pid in list(self._counted):
            self._end(pid)
        self._retry_at.clear()

    def _begin(self, pid: int, now_ns: int) -> None:
        perf = find_perf()
        try:
            if perf is None or os.stat(f"/proc/{pid}").st_uid != os.geteuid():
                raise ToolError("it can't be counted")
            tool = Perf(perf, pid)
            self._counted[pid] = ToolProcess(tool.counting(())), tool
            self._heard_at[pid] = now_ns
        except (OSError, ToolError):
            self._retry_at[pid] = now_ns + RETRY_NS

    def _take(self, pid: int, now_ns: int) -> None:
        process, tool = self._counted[pid]
        for line in process.lines():
            self._heard_at[pid] = now_ns
            tool.feed(line)
        silent = now_ns - self._heard_at[pid]
        if silent > SILENT_NS:
            raise ToolError("it hangs")
        if silent > STALE_NS:
            self._last.pop(pid, None)
        rates: Optional[Dict[str, float]] = tool.take()
        if rates is not None:
            self._last[pid] = tuple([rates.get(name) for name in PROCESS_COUNTERS])
        if process.ended:
            raise ToolError("it ended")

    def _end(self, pid: int) -> None:
        process, _ = self._counted.pop(pid)
        process.stop()
        del self._heard_at[pid]
        self._last.pop(pid, None)
