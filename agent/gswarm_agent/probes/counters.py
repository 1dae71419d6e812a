"""Hardware counters of the node and of processes, counted only while nobody else may or wants to use them.

At each tick the probe checks who may count here and whether a profiler runs. If somebody else has the
counters, it ends its own tool within the tick, and starts it again when they are free. The tools, their
events and the columns made of them are in ``counter_tools.py``.
"""

from __future__ import annotations

import os
from dataclasses import replace

from gswarm_agent.frame import INFO, WARNING, Note
from gswarm_agent.metrics import COUNTER_COLUMNS, COUNTERS, HOST_BY_NAME, PROCESS_METRICS
from gswarm_agent.probes.counter_rights import RightsReader
from gswarm_agent.probes.counter_tools import (
    INTERVAL_MS,
    RETRY_NS,
    SILENT_NS,
    STALE_NS,
    Likwid,
    Perf,
    ToolError,
    ToolProcess,
)
from gswarm_agent.probes.profilers import ProfilerWatch
from gswarm_agent.probes.rates import SECOND_NS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Mapping, Optional, Sequence, Tuple

    from gswarm_agent.frame import ProcessSample, Row
    from gswarm_agent.probes.counter_tools import Tool

KIND = "counters"
"""Kind of the events that this probe reports."""
_IDLE_NS = 5 * SECOND_NS
"""Interval of looking at the rights while nothing is counted."""
_FREE_NS = SECOND_NS
"""How long counters must have been free before they are used again."""
PROCESS_COUNTERS: Tuple[str, ...] = tuple(m.name for m in PROCESS_METRICS if m.group == COUNTERS)
"""The last of PROCESS_COLUMNS."""
_MOST_PROCESSES = 16
"""Processes of a node that are counted: more than the ranks of a node with eight GPUs."""
_NOTHING: Row = (None,) * len(COUNTER_COLUMNS)
_STARTING = "counting has just begun"


class CountersProbe:
    """Counts with perf or LIKWID while it is switched on and nobody else uses the counters.

    ``reasons`` says who may use the node's counters, and why columns have no values.
    """

    def __init__(
        self,
        root: str = "/",
        proc: str = "/proc",
        sys: str = "/sys",
        environ: Optional[Mapping[str, str]] = None,
    ) -> None:
        self._sys = sys
        self._reader = RightsReader(root, environ)
        self._watch = ProfilerWatch(proc)
        self._rights = self._reader.read()
        if self._rights.gpu_admin_only is not None:
            self._watch.look_at_all(0)
            self._rights = self._reader.read(self._watch.dcgm)
        self._notes: List[Note] = []
        self._on = False
        self._due = self._read_ns = 0
        self._processes = ProcessCounters()
        self._may_count = False
        self._running: Optional[Tuple[ToolProcess, Tool]] = None
        self._listed: Optional[List[str]] = None
        self._heard_at = 0
        self._start_at = self._retry_at = 0
        self._row: Row = _NOTHING
        self._obstacle = ""
        self._missing: Dict[str, str] = {}
        self._announced = ""

    @property
    def reasons(self) -> Dict[str, str]:
        """See the class."""
        columns: Dict[str, str] = {}
        if self._on:
            columns = dict.fromkeys(COUNTER_COLUMNS, self._obstacle) if self._obstacle else self._missing
        return {**self._rights.sentences, **columns}

    @property
    def is_counting(self) -> bool:
        """Whether a tool of this probe runs."""
        return self._running is not None or bool(self._processes.pids)

    def switch(self, *, on: bool) -> None:
        """Begin or end counting."""
        if self._on and not on:
            self._stop()
        if on and not self._on:
            self._obstacle, self._missing = "", dict.fromkeys(COUNTER_COLUMNS, _STARTING)
            self._announced = ""
            self._start_at = self._retry_at = 0
        self._on = on

    def read(self, now_ns: int) -> Row:
        """Return a row of COUNTER_COLUMNS: means since the call before, or those of the last second."""
        if not self._on and now_ns < self._due:
            return _NOTHING
        self._due, self._read_ns = now_ns + _IDLE_NS, now_ns
        self._look_at_rights()
        if not self._on:
            return _NOTHING
        obstacle = self._rights.obstacle or self._profiler(now_ns)
        self._may_count = not obstacle and now_ns >= self._start_at
        if obstacle:
            self._yield_to(obstacle, now_ns)
            return _NOTHING
        try:
            self._count(now_ns)
        except ToolError as error:
            self._fail(str(error), now_ns)
        return self._row

    def complete(self, samples: Sequence[ProcessSample]) -> Tuple[ProcessSample, ...]:
        """Return samples of processes with the values of PROCESS_COUNTERS appended."""
        pids = [sample.pid for sample in samples] if self._on and self._may_count else []
        counted = self._processes.read(pids, self._read_ns)
        nothing = (None,) * len(PROCESS_COUNTERS)
        return tuple([replace(s, row=(*s.row, *counted.get(s.pid, nothing))) for s in samples])

    def take_notes(self) -> List[Note]:
        """Return the notes since the last call."""
        notes, self._notes = self._notes, []
        return notes

    def close(self) -> None:
        """End the tool and close files."""
        self._stop()
        self._watch.close()

    def _look_at_rights(self) -> None:
        before, self._rights = self._rights, self._reader.read(self._watch.dcgm)
        if self._rights.cpu != before.cpu:
            self._retry_at = 0
            if not self._on or not self._rights.obstacle:  # else the note on the end of counting has it
                self._note(INFO, f"CPU counters: {self._rights.cpu}")
        if self._rights.gpu != before.gpu:
            self._note(INFO, f"GPU counters: {self._rights.gpu}")

    def _profiler(self, now_ns: int) -> str:
        own = [] if self._running is None else [self._running[0].pid]
        self._watch.own_groups = own + self._processes.pids
        profiler = self._watch.look(now_ns)
        return "" if profiler is None else f"in use by {profiler}"

    def _yield_to(self, obstacle: str, now_ns: int) -> None:
        self._start_at = now_ns + _FREE_NS
        counted = self.is_counting
        self._stop()
        if obstacle != self._obstacle:
            self._obstacle = obstacle
            still = "no longer" if counted else "not"
            self._note(WARNING, f"CPU counters {still} read: {obstacle}")

    def _fail(self, reason: str, now_ns: int) -> None:
        self._stop_node()
        self._retry_at = now_ns + RETRY_NS
        if reason != self._obstacle:
            self._obstacle = reason
            self._note(WARNING, f"CPU counters not read: {reason}")

    def _count(self, now_ns: int) -> None:
        if self._running is None:
            if now_ns >= max(self._start_at, self._retry_at):
                tool = self._choose()
                self._listed = []
                self._run(tool, tool.listing(), now_ns)
            return
        process, tool = self._running
        lines = process.lines()
        if lines:
            self._heard_at = now_ns
        elif now_ns - self._heard_at > SILENT_NS and not process.ended:
            raise ToolError(f"{process.name} printed nothing for {SILENT_NS // SECOND_NS} s")
        elif now_ns - self._heard_at > STALE_NS:
            self._row = _NOTHING
        if self._listed is not None:
            self._listed += lines
            if process.ended:
                self._running = None
                process.stop()
                command, self._listed = tool.counting(self._listed), None
                self._run(tool, command, now_ns)
            return
        for line in lines:
            tool.feed(line)
        rates = tool.take()
        if rates is not None:
            self._row = tuple([rates.get(name) for name in COUNTER_COLUMNS])
            self._missing, self._obstacle = tool.reasons, ""
            self._announce(tool)
        if process.ended:
            raise ToolError(f"{tool.name} ended" + (f": {tool.complaint}" if tool.complaint else ""))

    def _run(self, tool: Tool, command: Sequence[str], now_ns: int) -> None:
        self._running = ToolProcess(command), tool
        self._heard_at = now_ns

    def _choose(self) -> Tool:
        perf, likwid = Perf.find(), Likwid.find()
        if perf is not None and not self._rights.node_obstacle:
            return Perf(perf)
        if likwid is not None:
            return Likwid(likwid, self._cpus())
        if perf is not None:
            raise ToolError(self._rights.node_obstacle)
        raise ToolError("neither perf nor likwid-perfctr is installed on this node or on the PATH")

    def _cpus(self) -> str:
        try:
            with open(f"{self._sys}/devices/system/cpu/online") as file:  # pathlib is slow
                return file.read().strip()
        except OSError:
            return f"0-{(os.cpu_count() or 1) - 1}"

    def _announce(self, tool: Tool) -> None:
        """Note once with which tool it counts, and what it can't measure."""
        text = f"CPU counters read with {tool.name} every {INTERVAL_MS // 1000} s"
        for reason in dict.fromkeys(self._missing.values()):
            names = [HOST_BY_NAME[name].label for name, why in self._missing.items() if why == reason]
            text += f"; without {', '.join(names)} ({reason})"
        if text != self._announced:
            self._announced = text
            self._note(INFO, text)

    def _stop(self) -> None:
        self._processes.close()
        self._stop_node()

    def _stop_node(self) -> None:
        if self._running is not None:
            self._running[0].stop()
        self._running = self._listed = None
        self._row = _NOTHING
        self._announced = ""

    def _note(self, severity: str, message: str) -> None:
        self._notes.append(Note(KIND, severity, message))


class ProcessCounters:
    """Counts this user's processes on GPUs with one ``perf stat -p`` each, the first ones if there are many.

    This needs fewer rights than to count a whole node: on most systems users may count their own processes,
    without the time that these spend in the kernel.
    """

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
        for pid in sorted(new)[: _MOST_PROCESSES - len(self._counted)]:
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
        perf = Perf.find()
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
