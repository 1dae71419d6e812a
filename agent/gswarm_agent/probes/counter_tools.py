"""Tools that read hardware counters, ``perf stat`` and ``likwid-perfctr``: events, columns, child processes.

A tool runs ``cat`` as the program to measure. Its standard input is a pipe that only this process holds open:
once the pipe is closed, also because this process was killed, ``cat`` ends, and the tool with it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from contextlib import suppress

from gswarm_agent.probes.counter_output import (
    FLOP_EVENTS,
    MEMORY_EVENTS,
    likwid_rates,
    parse_likwid_clock,
    parse_likwid_groups,
    parse_likwid_line,
    parse_likwid_names,
    parse_perf_line,
    parse_perf_list,
    split_core_kind,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

LIFELINE = "cat"
INTERVAL_MS = 1000
"""Time between the lines of a tool."""
SILENT_NS, STALE_NS = 6_000_000_000, 2_500_000_000
"""Silence after which a tool counts as hung, and age at which its last values become NULL."""
RETRY_NS = 60_000_000_000
"""Pause after a tool failed."""
_ENDS_WITHIN_S, _KILLED_WITHIN_S = 0.05, 0.2
_CHUNK = 65536
_MOST_UNREAD = 1024 * 1024
"""Bytes that one look takes from a tool, which print some kilobytes a second."""
_LONGEST_LINE = 256 * 1024
"""LIKWID prints one line for all CPUs."""
_LONGEST_COMPLAINT = 160
_MOST_COMPLAINTS = 40

VIRTUAL = "this machine doesn't offer the CPU's hardware events, which is usual for virtual machines"


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
        # A process group, but no session of its own: if this process is killed while the tool is stopped, the
        # kernel sends SIGHUP and SIGCONT to the orphaned group.
        group: Dict[str, Any] = {"preexec_fn": os.setpgrp}  # a single system call, safe beside other threads
        if sys.version_info >= (3, 11):
            group = {"process_group": 0}
        try:
            self._process = subprocess.Popen(
                command,
                stdin=lifeline,
                stdout=output,
                stderr=output,
                env={**os.environ, "LC_ALL": "C"},
                **group,
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
        """Its process id, which is also its process group's."""
        return self._process.pid

    def lines(self) -> List[str]:
        """Return the lines that have come; sets ``ended`` at its end. Raises ToolError for endless output."""
        # Not the pipe's end: the program that it measures has the pipe, too, and may outlive it.
        self.ended = self._has_exited()
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
        """End it and everything that it started, within 50 ms or by force."""
        import subprocess

        os.close(self._lifeline)
        until = time.monotonic() + _ENDS_WITHIN_S
        # It stays a zombie until its group was killed, so that no other group can have its number by then.
        while not self._has_exited() and time.monotonic() < until:
            time.sleep(0.002)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # the kernel may take long to close many counters
            self._process.wait(_KILLED_WITHIN_S)
        os.close(self._output)

    def _has_exited(self) -> bool:
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        except ChildProcessError:
            return True


class Tool(ABC):
    """Base of ``Perf`` and ``Likwid``: builds a tool's commands and parses its lines.

    ``reasons`` says why it doesn't measure a column, complete after the first interval. ``complaint`` is the
    first or last line that is no measurement, whichever says more.
    """

    name = ""
    _first_says_more = False

    def __init__(self, path: str) -> None:
        self._path = path
        self.complaint = ""
        self._complaints = 0

    @classmethod
    def find(cls) -> Optional[str]:
        """Return the path of the program, None if it isn't installed."""
        import shutil  # takes long to import, and is needed for counting only

        return shutil.which(cls.name)

    @abstractmethod
    def listing(self) -> List[str]:
        """Return the command that prints what this CPU can count."""

    @abstractmethod
    def counting(self, listed: Sequence[str]) -> List[str]:
        """Return the command that counts, from the lines of the listing. Raises ToolError."""

    @abstractmethod
    def feed(self, line: str) -> None:
        """Take a line. Raises ToolError for output that isn't this tool's."""

    @abstractmethod
    def take(self) -> Optional[Dict[str, float]]:
        """Return the columns' mean values since the last call; None if no interval has ended."""

    @property
    @abstractmethod
    def reasons(self) -> Dict[str, str]:
        """See the class."""

    def _complain(self, line: str) -> None:
        if not (text := line.strip()):
            return
        self._complaints += 1
        if not (self._first_says_more and (self.complaint or text == "Error:")):
            printable = "".join(sign if sign.isprintable() else "?" for sign in text)
            self.complaint = printable[:_LONGEST_COMPLAINT]
        if self._complaints > _MOST_COMPLAINTS:
            raise ToolError(f"{self.name} printed something unexpected: {self.complaint}")


_INSTRUCTIONS, _CYCLES, _MISSES = "instructions", "cycles", "cache-misses"
_FAULTS, _SWITCHES, _MIGRATIONS = "page-faults", "context-switches", "cpu-migrations"
_SOFTWARE = {_FAULTS: "page_faults_s", _SWITCHES: "context_switches_s", _MIGRATIONS: "cpu_migrations_s"}
_GIGA, _MEGA = 1e9, 1e6


class Perf(Tool):
    """``perf stat`` of all CPUs, or of one process, whose columns are ``PROCESS_COUNTERS``.

    On a CPU with two kinds of cores, perf prints a hardware event once for each kind. These are added up.
    """

    name = "perf"
    _first_says_more = True  # general advice follows

    def __init__(self, path: str, pid: Optional[int] = None) -> None:
        super().__init__(path)
        self._pid = pid
        self._flops: List[str] = []
        self._memory: List[str] = []
        self._events: Tuple[str, ...] = ()
        self._supported: Dict[str, Dict[str, bool]] = {}  # by event and kind of cores
        self._counted: Set[str] = set()
        self._at = 0.0
        self._begun = 0.0
        self._current: Dict[str, Dict[str, Optional[float]]] = {}
        self._has_new = False
        self._sums: Dict[str, float] = {}
        self._spans: Dict[str, float] = {}

    def listing(self) -> List[str]:
        """See Tool."""
        return [self._path, "list", "--no-desc"]

    def counting(self, listed: Sequence[str]) -> List[str]:
        """See Tool."""
        events = [_INSTRUCTIONS, _CYCLES]
        if self._pid is None:
            self._flops, self._memory = parse_perf_list("\n".join(listed))
            events += [_MISSES, *self._flops, *self._memory, _SWITCHES, _MIGRATIONS]
        # Last an event that has one line, so that an interval has all its lines once each event has one.
        self._events = (*events, _FAULTS)
        scope = ["-a"] if self._pid is None else ["-p", str(self._pid)]
        stat = [self._path, "stat", *scope, "-I", str(INTERVAL_MS), "-x,", "-e", ",".join(self._events)]
        return [*stat, "--", LIFELINE]

    def feed(self, line: str) -> None:
        """See Tool."""
        found = parse_perf_line(line)
        if found is None or found.at < self._at:
            self._complain(line)
            return
        kind, event = ("", found.event) if found.event in self._events else split_core_kind(found.event)
        if event not in self._events:
            self._complain(line)
            return
        if found.at > self._at and self._current:
            self._end_interval()
        self._at = found.at
        self.complaint = ""
        self._current.setdefault(event, {})[kind] = found.count
        self._supported.setdefault(event, {})[kind] = found.supported

    def take(self) -> Optional[Dict[str, float]]:
        """See Tool."""
        if self._current and len(self._current) == len(self._events):
            self._end_interval()
        if not self._has_new:
            return None
        self._has_new = False
        rates = {event: total / self._spans[event] for event, total in self._sums.items()}
        self._sums, self._spans = {}, {}
        columns = {column: rates[event] for event, column in _SOFTWARE.items() if event in rates}
        if _MISSES in rates:
            columns["llc_misses_m_s"] = rates[_MISSES] / _MEGA
        if _INSTRUCTIONS in rates:
            columns["instructions_g_s"] = rates[_INSTRUCTIONS] / _GIGA
        if _CYCLES in rates:
            columns["cycles_g_s"] = rates[_CYCLES] / _GIGA
            if _INSTRUCTIONS in rates and rates[_CYCLES] > 0:
                columns["ipc"] = rates[_INSTRUCTIONS] / rates[_CYCLES]
        if self._flops and not self._of_some_cores and all(event in rates for event in self._flops):
            columns["flops_g_s"] = sum(rates[e] * FLOP_EVENTS[e] for e in self._flops) / _GIGA
        if self._memory and all(event in rates for event in self._memory):
            columns["memory_bandwidth_mb_s"] = sum(rates[e] * MEMORY_EVENTS[e] for e in self._memory) / _MEGA
        return columns

    @property
    def reasons(self) -> Dict[str, str]:
        """See Tool."""
        needs = {
            "instructions_g_s": [_INSTRUCTIONS],
            "cycles_g_s": [_CYCLES],
            "ipc": [_INSTRUCTIONS, _CYCLES],
            "llc_misses_m_s": [_MISSES],
            **{column: [event] for event, column in _SOFTWARE.items()},
            "flops_g_s": self._flops,
            "memory_bandwidth_mb_s": self._memory,
        }
        reasons = {}
        no_hardware = not self._is_supported(_CYCLES) and not self._is_supported(_INSTRUCTIONS)
        for column, events in needs.items():
            missing = [event for event in events if not self._is_supported(event)]
            if no_hardware and column not in _SOFTWARE.values():
                reasons[column] = f"perf: <not supported>: {VIRTUAL}"
            elif not events:
                what = "floating-point operations" if column == "flops_g_s" else "memory traffic"
                reasons[column] = f"perf lists no event of this CPU for {what}"
            elif missing:
                reasons[column] = f"perf: <not supported>: {', '.join(missing)}"
            elif uncounted := [event for event in events if event not in self._counted]:
                reasons[column] = f"perf: <not counted>: {', '.join(uncounted)}: too few free counters"
            elif column == "flops_g_s" and self._of_some_cores:
                reasons[column] = "perf counts floating-point operations on one kind of this CPU's cores only"
        return reasons

    def _is_supported(self, event: str) -> bool:
        return all(self._supported.get(event, {}).values())

    @property
    def _of_some_cores(self) -> bool:
        """Whether floating-point operations are counted on fewer kinds of cores than there are."""
        kinds = len(self._supported.get(_CYCLES, {}))
        return any(len(self._supported.get(event, {})) < kinds for event in self._flops)

    def _count(self, event: str) -> Optional[float]:
        """Return an event's count in the current interval, the sum of all kinds of cores."""
        counts = self._current[event].values()
        counted = [count for count in counts if count is not None]
        # A process may run on one kind of cores only.
        is_whole = len(counted) == len(counts) or (self._pid is not None and counted)
        return sum(counted) if is_whole and self._is_supported(event) else None

    def _end_interval(self) -> None:
        span, self._begun, self._has_new = self._at - self._begun, self._at, True
        counts = {event: self._count(event) for event in self._current}
        if self._pid is not None and not any(count is not None for count in counts.values()):
            # perf counts nothing of a process that didn't run.
            counts = {event: 0.0 for event in counts if self._is_supported(event)}
        for event, count in counts.items():
            if count is not None and span > 0:
                self._counted.add(event)
                self._sums[event] = self._sums.get(event, 0.0) + count
                self._spans[event] = self._spans.get(event, 0.0) + span
        self._current = {}


class Likwid(Tool):
    """``likwid-perfctr`` on all CPUs with the performance group that measures most."""

    name = "likwid-perfctr"

    def __init__(self, path: str, cpus: str) -> None:
        super().__init__(path)
        self._cpus = cpus
        self._group = ""
        self._names: Optional[List[str]] = None
        self._clock_mhz = 0.0
        self._at = 0.0
        self._sums: Dict[str, float] = {}
        self._span = 0.0
        self._measured: Tuple[str, ...] = ()

    def listing(self) -> List[str]:
        """See Tool."""
        return [self._path, "-a"]

    def counting(self, listed: Sequence[str]) -> List[str]:
        """See Tool."""
        group = parse_likwid_groups("\n".join(listed))
        if group is None:
            raise ToolError(
                "LIKWID has no performance group for this CPU, which is usual for virtual machines"
            )
        self._group = group
        every = ["-t", f"{INTERVAL_MS}ms", "-O"]
        return [self._path, "-c", self._cpus, "-g", group, *every, LIFELINE]

    def feed(self, line: str) -> None:
        """See Tool."""
        if self._names is None:
            self._clock_mhz = parse_likwid_clock(line) or self._clock_mhz
            self._names = parse_likwid_names(line)
            if self._names is None:
                self._complain(line)
            return
        found = parse_likwid_line(line, self._names)
        if found is None or found[0] <= self._at:
            self._complain(line)
            return
        span, self._at = found[0] - self._at, found[0]
        rates = likwid_rates(found[1], self._clock_mhz)
        self._measured = tuple(rates)
        for column, rate in rates.items():
            self._sums[column] = self._sums.get(column, 0.0) + rate * span
        self._span += span

    def take(self) -> Optional[Dict[str, float]]:
        """See Tool."""
        if not self._span:
            return None
        rates = {column: total / self._span for column, total in self._sums.items()}
        self._sums, self._span = {}, 0.0
        return rates

    @property
    def reasons(self) -> Dict[str, str]:
        """See Tool."""
        from gswarm_agent.metrics import COUNTER_COLUMNS

        missing = [column for column in COUNTER_COLUMNS if column not in self._measured]
        return dict.fromkeys(missing, f"LIKWID's group {self._group} doesn't measure it")
