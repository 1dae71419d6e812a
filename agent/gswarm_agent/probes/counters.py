"""Hardware counters of the node, counted with perf only while nobody else may or wants to use them.

At each tick the probe checks who may count here, and every five seconds whether a profiler runs. In the tick
that finds somebody else with the counters, it ends perf; it starts perf again when they are free.
Events and the columns made of them are in ``counter_tools.py``.
"""

from __future__ import annotations

from gswarm_agent.frame import INFO, WARNING, Note
from gswarm_agent.metrics import COUNTER_COLUMNS, CPU_COUNTERS, GPU_COUNTERS
from gswarm_agent.probes.counter_rights import ProfilerWatch, RightsReader
from gswarm_agent.probes.counter_tools import (
    INTERVAL_MS,
    RETRY_NS,
    SILENT_NS,
    STALE_NS,
    Perf,
    ToolError,
    ToolProcess,
    find_perf,
)
from gswarm_agent.probes.rates import SECOND_NS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Sequence, Tuple

    from gswarm_agent.frame import Row

KIND = "counters"
"""Kind of the events that this probe reports."""
_IDLE_NS = 5 * SECOND_NS
"""Interval of looking at the rights while nothing is counted."""
_NOTHING: Row = (None,) * len(COUNTER_COLUMNS)
_STARTING = "counting has just begun"


class CountersProbe:
    """Counts with perf while it is switched on and nobody else uses the counters.

    ``reasons`` says who may use the node's counters, and why columns have no values.
    """

    def __init__(self, root: str = "/", proc: str = "/proc") -> None:
        self._reader = RightsReader(root)
        self._watch = ProfilerWatch(proc)
        self._rights = self._reader.read()
        self._notes: List[Note] = []
        self._on = False
        self._due = 0
        self._running: Optional[Tuple[ToolProcess, Perf]] = None
        self._listed: Optional[List[str]] = None
        self._heard_at = self._retry_at = 0
        self._row: Row = _NOTHING
        self._obstacle = ""
        self._missing: Dict[str, str] = {}
        self._announced = False

    @property
    def reasons(self) -> Dict[str, str]:
        """See the class."""
        columns: Dict[str, str] = {}
        if self._on:
            columns = dict.fromkeys(COUNTER_COLUMNS, self._obstacle) if self._obstacle else self._missing
        return {CPU_COUNTERS: self._rights.cpu, GPU_COUNTERS: self._rights.gpu, **columns}

    def switch(self, *, on: bool) -> None:
        """Begin or end counting."""
        if self._on and not on:
            self._stop()
        if on and not self._on:
            self._obstacle, self._missing = "", dict.fromkeys(COUNTER_COLUMNS, _STARTING)
            self._retry_at = 0
        self._on = on

    def read(self, now_ns: int) -> Row:
        """Return a row of COUNTER_COLUMNS: means since the call before, or those of the last second."""
        if not self._on and now_ns < self._due:
            return _NOTHING
        self._due = now_ns + _IDLE_NS
        self._look_at_rights()
        if not self._on:
            return _NOTHING
        obstacle = self._rights.node_obstacle or self._profiler(now_ns)
        if obstacle:
            self._give_up(obstacle)
            return _NOTHING
        try:
            self._count(now_ns)
        except ToolError as error:
            self._give_up(str(error))
            self._retry_at = now_ns + RETRY_NS
        return self._row

    def take_notes(self) -> List[Note]:
        """Return the notes since the last call."""
        notes, self._notes = self._notes, []
        return notes

    def close(self) -> None:
        """End the tool."""
        self._stop()

    def _look_at_rights(self) -> None:
        before, self._rights = self._rights, self._reader.read()
        if self._rights.cpu != before.cpu:
            self._retry_at = 0
            # While counting is on, the note that counting ended gives the new obstacle.
            if not self._on or not self._rights.node_obstacle:
                self._note(INFO, f"CPU counters: {self._rights.cpu}")
        if self._rights.gpu != before.gpu:
            self._note(INFO, f"GPU counters: {self._rights.gpu}")

    def _profiler(self, now_ns: int) -> str:
        self._watch.own = None if self._running is None else self._running[0].pid
        profiler = self._watch.look(now_ns)
        return f"in use by {profiler}" if profiler else ""

    def _give_up(self, obstacle: str) -> None:
        """Stop counting, and note a new obstacle."""
        self._stop()
        if obstacle != self._obstacle:
            self._obstacle = obstacle
            self._note(WARNING, f"CPU counters not read: {obstacle}")

    def _count(self, now_ns: int) -> None:
        if self._running is None:
            if now_ns >= self._retry_at:
                path = find_perf()
                if path is None:
                    raise ToolError("perf isn't installed on this node or on the PATH")
                tool = Perf(path)
                self._listed = []
                self._run(tool, tool.listing(), now_ns)
            return
        process, tool = self._running
        lines = process.lines()
        if self._listed is not None and process.ended:
            self._running = None
            process.stop()
            command, self._listed = tool.counting([*self._listed, *lines]), None
            self._run(tool, command, now_ns)
            return
        rates = None
        if self._listed is not None:
            self._listed += lines
        else:
            for line in lines:
                tool.feed(line)
            rates = tool.take()
        complaint = f": {tool.complaint}" if tool.complaint else ""
        if rates is not None:
            self._heard_at = now_ns
            self._row = tuple([rates.get(name) for name in COUNTER_COLUMNS])
            self._missing, self._obstacle = tool.reasons, ""
            if not self._announced:
                self._announced = True
                self._note(INFO, f"CPU counters read with perf every {INTERVAL_MS // 1000} s")
        elif now_ns - self._heard_at > SILENT_NS:
            raise ToolError(f"perf counted nothing for {SILENT_NS // SECOND_NS} s{complaint}")
        elif now_ns - self._heard_at > STALE_NS:
            self._row = _NOTHING
        if process.ended:
            raise ToolError(f"perf ended{complaint}")

    def _run(self, tool: Perf, command: Sequence[str], now_ns: int) -> None:
        self._running = ToolProcess(command), tool
        self._heard_at = now_ns

    def _stop(self) -> None:
        if self._running is not None:
            self._running[0].stop()
        self._running = self._listed = None
        self._row = _NOTHING
        self._announced = False

    def _note(self, severity: str, message: str) -> None:
        self._notes.append(Note(KIND, severity, message))
