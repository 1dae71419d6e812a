"""``perf stat``, which reads the node's hardware counters: its process, events, output and columns.

It runs ``cat`` as the program to measure. Its standard input is a pipe that only this process holds open:
once the pipe is closed, also because this process was killed, ``cat`` ends, and perf with it.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Sequence, Set, Tuple

LIFELINE = "cat"
INTERVAL_MS = 1000
"""Time between the lines of a tool."""
SILENT_NS, STALE_NS = 6_000_000_000, 2_500_000_000
"""Silence after which a tool counts as hung, and age at which its last values become NULL."""
RETRY_NS = 60_000_000_000
"""Pause after a tool failed."""
_KILLED_WITHIN_S = 0.2
_CHUNK = 65536
_MOST_UNREAD = 1024 * 1024
"""Bytes that one look takes from a tool, which print some kilobytes a second."""
_LONGEST_LINE = 4096
_LONGEST_COMPLAINT = 160

VIRTUAL = "this machine doesn't offer the CPU's hardware events, which is usual for virtual machines"


NOT_SUPPORTED = "<not supported>"
_MIB = 1024 * 1024
_NUMBER = r"[0-9]{1,24}(?:\.[0-9]{1,12})?"
# Time, value, unit and event; run time, share of time and metrics follow.
_LINE = re.compile(rf"\s*({_NUMBER}),({_NUMBER}|{NOT_SUPPORTED}|<not counted>),(\w*),([^,:\s][^,\s]*),.*,")

MIB = "MiB"
"""The unit that perf prints for traffic of Intel's memory controllers."""


@dataclass(frozen=True)
class PerfLine:
    """One event in one interval of ``perf stat -I``; ``count`` is None if it wasn't counted.

    ``at`` is the interval's end in seconds since the start. Of an event in MiB, ``count`` is in bytes.
    """

    at: float
    event: str
    count: Optional[float]
    supported: bool


def parse_perf_line(line: str) -> Optional[PerfLine]:
    """Parse a line of ``perf stat -I N -x,``; None for a line of another form."""
    found = _LINE.match(line)
    if found is None:
        return None
    at, value, unit, event = found.groups()
    event = re.sub(r":[a-zA-Z]+$|(?<=/)[a-zA-Z]+$", "", event)  # without modifiers
    if value.startswith("<"):
        return PerfLine(float(at), event, None, value != NOT_SUPPORTED)
    return PerfLine(float(at), event, float(value) * (_MIB if unit == MIB else 1), True)


FLOP_EVENTS: Dict[str, float] = {
    "fp_arith_inst_retired.scalar_double": 1,
    "fp_arith_inst_retired.scalar_single": 1,
    "fp_arith_inst_retired.128b_packed_double": 2,
    "fp_arith_inst_retired.128b_packed_single": 4,
    "fp_arith_inst_retired.256b_packed_double": 4,
    "fp_arith_inst_retired.256b_packed_single": 8,
    "fp_arith_inst_retired.512b_packed_double": 8,
    "fp_arith_inst_retired.512b_packed_single": 16,
    "fp_ret_sse_avx_ops.all": 1,
}
"""Floating-point operations for each count of Intel's and AMD's events."""
MEMORY_EVENTS: Dict[str, float] = {
    "uncore_imc/cas_count_read/": 1,
    "uncore_imc/cas_count_write/": 1,
    "umc_cas_cmd.all": 64,
    **{f"dram_channel_data_controller_{at}": 64 for at in range(8)},
}
"""Bytes for each count of memory controllers' events, as perf scales: Intel, AMD Zen 4, AMD Zen 2 and 3."""


def parse_perf_list(text: str) -> Tuple[List[str], List[str]]:
    """Parse ``perf list --no-desc``: this CPU's events for floating-point operations and memory traffic."""
    words = set(text.split())
    if any(re.match(r"uncore_imc(_\d+)?/cas_count_read/", word) for word in words):
        words |= {"uncore_imc/cas_count_read/", "uncore_imc/cas_count_write/"}
    return [name for name in FLOP_EVENTS if name in words], [name for name in MEMORY_EVENTS if name in words]


class ToolError(Exception):
    """Raised when a tool can't count; the message gives the reason."""


class ToolProcess:
    """A running tool: ``lines`` returns what it printed since the last call, without waiting."""

    def __init__(self, command: Sequence[str]) -> None:
        import subprocess

        lifeline, self._lifeline = os.pipe()
        self._output, output = os.pipe()
        os.set_blocking(self._output, False)
        self.name = os.path.basename(command[0])
        environ = {**os.environ, "LC_ALL": "C"}
        try:
            self._process = subprocess.Popen(
                command, stdin=lifeline, stdout=output, stderr=output, env=environ
            )
        except OSError as error:
            os.close(self._lifeline)
            os.close(self._output)
            raise ToolError(f"{self.name} can't be started: {error.strerror}") from None
        finally:
            os.close(lifeline)
            os.close(output)
        self._rest = b""
        self.ended = False

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def lines(self) -> List[str]:
        """Return the lines that have come; sets ``ended`` at its end. Raises ToolError for endless output."""
        # The measured program has the pipe, too, and may outlive perf: the pipe's end says nothing.
        self.ended = self._process.poll() is not None
        taken = bytearray(self._rest)
        while len(taken) < _MOST_UNREAD:
            try:
                data = os.read(self._output, _CHUNK)
            except BlockingIOError:
                break
            if not data:
                break
            taken += data
        *whole, rest = bytes(taken).split(b"\n")
        if self.ended and rest:
            whole, rest = [*whole, rest], b""
        if len(rest) > _LONGEST_LINE or len(taken) >= _MOST_UNREAD:
            raise ToolError(f"{self.name} printed too much")
        self._rest = rest
        return [line.decode("utf-8", "replace") for line in whole]

    def stop(self) -> None:
        """End it; the program that it measures ends with the pipe."""
        import subprocess

        os.close(self._lifeline)
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # the kernel may take long to close many counters
            self._process.wait(_KILLED_WITHIN_S)
        os.close(self._output)


_INSTRUCTIONS, _CYCLES, _MISSES = "instructions", "cycles", "cache-misses"
_FAULTS, _SWITCHES, _MIGRATIONS = "page-faults", "context-switches", "cpu-migrations"
_GIGA, _MEGA = 1e9, 1e6
_HARDWARE = {
    "instructions_g_s": (_INSTRUCTIONS, _GIGA),
    "cycles_g_s": (_CYCLES, _GIGA),
    "llc_misses_m_s": (_MISSES, _MEGA),
}
_SOFTWARE = {
    "page_faults_s": (_FAULTS, 1.0),
    "context_switches_s": (_SWITCHES, 1.0),
    "cpu_migrations_s": (_MIGRATIONS, 1.0),
}
_SINGLE = {**_HARDWARE, **_SOFTWARE}
"""The columns that are one event each, and how many of it their unit has."""


class Perf:
    """``perf stat`` of all CPUs: builds its commands and parses its lines.

    ``complaint`` is the first line that is no measurement, as general advice follows.
    """

    def __init__(self, path: str) -> None:
        self.complaint = ""
        self._path = path
        self._flops: List[str] = []
        self._memory: List[str] = []
        self._events: Tuple[str, ...] = ()
        self._supported: Dict[str, bool] = {}
        self._counted: Set[str] = set()
        self._at = 0.0
        self._begun = 0.0
        self._current: Dict[str, Optional[float]] = {}
        self._has_new = False
        self._sums: Dict[str, float] = {}
        self._spans: Dict[str, float] = {}

    def listing(self) -> List[str]:
        """Return the command that prints what this CPU can count."""
        return [self._path, "list", "--no-desc"]

    def counting(self, listed: Sequence[str]) -> List[str]:
        """Return the command that counts, from the lines of the listing."""
        self._flops, self._memory = parse_perf_list("\n".join(listed))
        hardware = (_INSTRUCTIONS, _CYCLES, _MISSES, *self._flops, *self._memory)
        # Last an event that has one line, so that an interval has all its lines once each event has one.
        self._events = (*hardware, _SWITCHES, _MIGRATIONS, _FAULTS)
        every = ["-a", "-I", str(INTERVAL_MS), "-x,", "-e", ",".join(self._events)]
        return [self._path, "stat", *every, "--", LIFELINE]

    def feed(self, line: str) -> None:
        """Take a line; keep it as the complaint if it is no measurement."""
        found = parse_perf_line(line)
        if found is None or found.at < self._at or found.event not in self._events:
            if self.complaint in ("", "Error:"):
                printable = "".join(sign if sign.isprintable() else "?" for sign in line.strip())
                self.complaint = printable[:_LONGEST_COMPLAINT]
            return
        if found.at > self._at and self._current:
            self._end_interval()
        self._at = found.at
        self.complaint = ""
        self._current[found.event] = found.count
        self._supported[found.event] = found.supported

    def take(self) -> Optional[Dict[str, float]]:
        """Return the columns' mean values since the last call; None if no interval has ended."""
        if self._current and len(self._current) == len(self._events):
            self._end_interval()
        if not self._has_new:
            return None
        self._has_new = False
        rates = {event: total / self._spans[event] for event, total in self._sums.items()}
        self._sums, self._spans = {}, {}
        columns = {name: rates[event] / unit for name, (event, unit) in _SINGLE.items() if event in rates}
        if _INSTRUCTIONS in rates and rates.get(_CYCLES, 0) > 0:
            columns["ipc"] = rates[_INSTRUCTIONS] / rates[_CYCLES]
        if self._flops and all(event in rates for event in self._flops):
            columns["flops_g_s"] = sum(rates[e] * FLOP_EVENTS[e] for e in self._flops) / _GIGA
        if self._memory and all(event in rates for event in self._memory):
            columns["memory_bandwidth_mb_s"] = sum(rates[e] * MEMORY_EVENTS[e] for e in self._memory) / _MEGA
        return columns

    @property
    def reasons(self) -> Dict[str, str]:
        """Why it doesn't measure a column, complete after the first interval."""
        needs = {
            **{column: [event] for column, (event, _) in _SINGLE.items()},
            "ipc": [_INSTRUCTIONS, _CYCLES],
            "flops_g_s": self._flops,
            "memory_bandwidth_mb_s": self._memory,
        }
        reasons = {}
        supported = self._supported
        no_hardware = not supported.get(_CYCLES, True) and not supported.get(_INSTRUCTIONS, True)
        for column, events in needs.items():
            missing = [event for event in events if not supported.get(event, True)]
            if no_hardware and column not in _SOFTWARE:
                reasons[column] = f"perf: <not supported>: {VIRTUAL}"
            elif not events:
                what = "floating-point operations" if column == "flops_g_s" else "memory traffic"
                reasons[column] = f"perf lists no event of this CPU for {what}"
            elif missing:
                reasons[column] = f"perf: <not supported>: {', '.join(missing)}"
            elif uncounted := [event for event in events if event not in self._counted]:
                reasons[column] = f"perf: <not counted>: {', '.join(uncounted)}: too few free counters"
        return reasons

    def _end_interval(self) -> None:
        span, self._begun, self._has_new = self._at - self._begun, self._at, True
        for event, count in self._current.items():
            if count is not None and span > 0:
                self._counted.add(event)
                self._sums[event] = self._sums.get(event, 0.0) + count
                self._spans[event] = self._spans.get(event, 0.0) + span
        self._current = {}


def find_perf() -> Optional[str]:
    """Return the path of perf, None if it isn't installed."""
    # The module shutil takes long to import, and only counting needs it.
    import shutil

    return shutil.which("perf")
