"""Parsers of what ``perf`` prints (``man perf-stat``, CSV FORMAT). No I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

NOT_SUPPORTED = "<not supported>"
_NOT_COUNTED = "<not counted>"
_CSV_FIELDS = 6  # time, value, unit, event, run time, share of time; metrics may follow
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
    """Parse a line of ``perf stat -I N -x,``; None for a line of another form."""
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
