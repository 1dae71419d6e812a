"""Parsers of what ``perf`` prints (``man perf-stat``, CSV FORMAT). No I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

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
