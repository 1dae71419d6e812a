"""Scales of metrics and their colour buckets: one colour means one value on every screen.

A *fraction* is a value on its fixed scale, 0 to 1, NaN where unmeasured. A *bucket* is one of ``BUCKETS``
equal steps of it, ``UNMEASURED`` for NaN. Heights of block characters are the second channel.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gswarm_agent.frame import GpuFacts, HostFacts
from gswarm_agent.metrics import REASON_POWER_CAP, Metric
from gswarm_tui.fleet.history import Floats
from gswarm_tui.fleet.throttling import HARMFUL

Buckets = npt.NDArray[np.int8]

BUCKETS = 20
UNMEASURED = -1
BLOCKS = "▁▂▃▄▅▆▇█"
COUNT_TOP = 10_000.0
RATE_LOWEST_MB_S, RATE_TOP_MB_S = 1.0, 100_000.0
HOT = "_hot"
HOT_METRICS = {
    *("mem_used_mib", "temp_c", "mem_temp_c", "clock_reasons", "pstate"),
    *("throttle_power_pct", "throttle_thermal_pct", "throttle_brake_pct"),
    *("ecc_corrected", "ecc_uncorrected"),
    *("cpu_iowait_pct", "memory_used_mib", "swap_used_mib"),
    *("psi_cpu_pct", "psi_memory_pct", "psi_io_pct"),
}
"""Metrics of which more is worse: temperatures, memory, throttling, errors, waiting."""


def ramp_of(metric: Metric) -> str:
    """Return what a metric's ramp adds to the names of roles: ``HOT`` where more is worse, else nothing."""
    return HOT if metric.name in HOT_METRICS else ""


def is_logarithmic(metric: Metric) -> bool:
    """Whether a metric has a logarithmic scale: rates and error counts without an upper end."""
    return metric.top is None and metric.top_fact is None and metric.unit in ("MB/s", "errors")


def top_of(metric: Metric, facts: GpuFacts | HostFacts | None) -> float | None:
    """Return the fixed upper end of a metric's scale on a device, in the metric's unit; None without one."""
    if metric.top is not None:
        return metric.top
    if metric.unit == "errors":
        return COUNT_TOP
    if is_logarithmic(metric):
        return RATE_TOP_MB_S
    value = getattr(facts, metric.top_fact, None) if metric.top_fact and facts is not None else None
    return float(value) if value else None


def tops(metric: Metric, facts: Sequence[GpuFacts | HostFacts | None]) -> Floats:
    """Return ``top_of`` for many devices, NaN without one."""
    return np.array([top_of(metric, each) or np.nan for each in facts], dtype=np.float64)


def fractions(metric: Metric, values: Floats, top: Floats | float) -> Floats:
    """Scale values to 0..1; NaN stays NaN. ``top`` broadcasts against ``values``.

    Rates are logarithmic from 1 MB/s to 100 GB/s, error counts from 1 to 10,000. Clock reasons are 0, a power
    cap 0.5 and harmful ones 1.
    """
    if metric.unit == "bits":
        bits = np.nan_to_num(values).astype(np.int64)
        held = np.where(bits & HARMFUL, 1.0, np.where(bits & REASON_POWER_CAP, 0.5, 0.0))
        return np.where(np.isfinite(values), held, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        if is_logarithmic(metric):
            lowest = RATE_LOWEST_MB_S if metric.unit == "MB/s" else 1.0
            scaled = np.log(np.maximum(values, lowest / 10) / lowest) / np.log(np.asarray(top) / lowest)
            if metric.unit == "errors":
                scaled = np.where(values >= 1, np.maximum(scaled, 0.5), scaled)
        else:
            scaled = values / top
    return np.clip(scaled, 0.0, 1.0)


def buckets(fraction: Floats) -> Buckets:
    """Return the bucket of each fraction."""
    measured = np.isfinite(fraction)
    steps = np.minimum(np.where(measured, fraction, 0.0) * BUCKETS, BUCKETS - 1)
    return np.where(measured, steps, UNMEASURED).astype(np.int8)


def bucket(fraction: float) -> int:
    """Return the bucket of one fraction."""
    return int(buckets(np.array([fraction]))[0])


BLOCK_OF = "".join(BLOCKS[step * len(BLOCKS) // BUCKETS] for step in range(BUCKETS)) + "–"
"""Block character of each bucket: eight heights, and "–" at -1, where unmeasured."""
