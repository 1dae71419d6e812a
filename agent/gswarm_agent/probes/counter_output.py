"""Parsers of what ``perf`` and ``likwid-perfctr`` print. No I/O.

Formats: ``man perf-stat`` (CSV FORMAT), and likwid-perfctr's timeline mode with ``-O`` as version 5.2 prints
it. A parser returns None for a line of another form.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Sequence, Tuple

NOT_SUPPORTED = "<not supported>"
_NOT_COUNTED = "<not counted>"
_CSV_FIELDS = 6  # time, value, unit, event, run time, share of time; metrics may follow
_TIMELINE_FIELDS = 4  # group, number of metrics, number of CPUs, time; values follow
_MIB = 1024 * 1024

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
    """Parse a line of ``perf stat -I N -x,``."""
    fields = [field.strip() for field in line.split(",")]
    if len(fields) < _CSV_FIELDS:
        return None
    at, value, unit, event = _number(fields[0]), fields[1], fields[2], fields[3]
    if at is None or not event:
        return None
    if value in (NOT_SUPPORTED, _NOT_COUNTED):
        return PerfLine(at, _without_modifiers(event), None, value != NOT_SUPPORTED)
    count = _number(value)
    if count is None:
        return None
    return PerfLine(at, _without_modifiers(event), count * _MIB if unit == MIB else count, True)


def _without_modifiers(event: str) -> str:
    return re.sub(r":[a-zA-Z]+$|(?<=/)[a-zA-Z]+$", "", event)


def split_core_kind(event: str) -> Tuple[str, str]:
    """Split an event of one kind of cores, as ``cpu_core/cycles/``: kind, which may be empty, and event."""
    found = re.fullmatch(r"([^/]+)/([^/]+)/", event)
    return (found[1], found[2]) if found else ("", event)


def _number(text: str) -> Optional[float]:
    if not re.fullmatch(r"[0-9]{1,24}(\.[0-9]{1,12})?(e[+-]?[0-9]{1,2})?", text):
        return None
    number = float(text)
    return number if number < 1e24 else None


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


_LIKWID_GROUPS = ("MEM_DP", "FLOPS_DP", "CPI", "CLOCK")
"""LIKWID's performance groups, those that measure most first."""


def parse_likwid_groups(text: str) -> Optional[str]:
    """Parse ``likwid-perfctr -a``: the group to measure, None if this CPU has none that is known."""
    names = {line.split()[0] for line in text.splitlines() if line.startswith((" ", "\t")) and line.split()}
    return next((name for name in _LIKWID_GROUPS if name in names), None)


def parse_likwid_names(line: str) -> Optional[List[str]]:
    """Parse the line ``# GID|MetricsCount|CpuCount|Total runtime [s]|...``: the names of metrics."""
    head, *names = line.split("|")
    if head.strip() != "# GID" or len(names) < _TIMELINE_FIELDS or names[0] != "MetricsCount":
        return None
    return names[_TIMELINE_FIELDS - 1 :]


def parse_likwid_line(line: str, names: Sequence[str]) -> Optional[Tuple[float, Dict[str, List[float]]]]:
    """Parse a line of the timeline: seconds since the start, and each metric's value on each CPU.

    A value that LIKWID can't compute ("nan", "-") is 0.
    """
    fields = [field.strip() for field in line.split(",")]
    if len(fields) < _TIMELINE_FIELDS or not all(re.fullmatch(r"[0-9]{1,6}", text) for text in fields[:3]):
        return None
    _, metrics, cpus = map(int, fields[:3])
    at, texts = _number(fields[3]), fields[_TIMELINE_FIELDS:]
    if at is None or metrics != len(names) or len(texts) != metrics * cpus:
        return None
    values = []
    for text in texts:
        value = 0.0 if text.lstrip("-") in ("", "nan", "inf") else _number(text)
        if value is None:
            return None
        values.append(value)
    return at, {name: values[place * cpus : (place + 1) * cpus] for place, name in enumerate(names)}


_RUNTIME, _UNHALTED, _CLOCK = "Runtime (RDTSC) [s]", "Runtime unhalted [s]", "Clock [MHz]"
_CPI, _FLOPS, _TRAFFIC = "CPI", "DP [MFLOP/s]", "Memory bandwidth [MBytes/s]"
_MEGA_TO_GIGA = 1e-3


def likwid_rates(metrics: Dict[str, List[float]], nominal_mhz: float) -> Dict[str, float]:
    """Return the catalogue's columns of one interval.

    LIKWID's ``Runtime unhalted`` is cycles divided by the nominal clock. It reports memory traffic on one CPU
    of each socket and 0 on others.
    """
    rates: Dict[str, float] = {}
    span = max(metrics.get(_RUNTIME, [0.0]))
    if span > 0 and nominal_mhz > 0 and _UNHALTED in metrics:
        cycles = [seconds * nominal_mhz * _MEGA_TO_GIGA / span for seconds in metrics[_UNHALTED]]
        rates["cycles_g_s"] = math.fsum(cycles)
        if len(metrics.get(_CPI, ())) == len(cycles):
            instructions = math.fsum(c / cpi for c, cpi in zip(cycles, metrics[_CPI]) if cpi > 0)
            rates["instructions_g_s"] = instructions
            if rates["cycles_g_s"] > 0:
                rates["ipc"] = instructions / rates["cycles_g_s"]
    if _FLOPS in metrics:
        rates["flops_g_s"] = math.fsum(metrics[_FLOPS]) * _MEGA_TO_GIGA
    if _TRAFFIC in metrics:
        rates["memory_bandwidth_mb_s"] = math.fsum(metrics[_TRAFFIC])
    return rates


def parse_likwid_clock(line: str) -> Optional[float]:
    """Parse the line ``CPU clock:  2.60 GHz``: the nominal clock in MHz."""
    found = re.fullmatch(r"CPU clock:\s*([0-9]{1,3}\.[0-9]{1,6}) GHz\s*", line)
    return float(found[1]) * 1000 if found else None
