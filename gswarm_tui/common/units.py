"""Units in which values are shown, and round ends for scales."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gswarm_agent.metrics import Metric


@dataclass(frozen=True)
class Unit:
    """Unit in which values of a catalogue unit are shown: multiplied by ``factor`` and called ``name``."""

    name: str
    factor: float = 1.0


_UNITS = {
    "MiB": Unit("GiB", 1 / 1024),
    "MB/s": Unit("GB/s", 1 / 1000),
    "mJ": Unit("kWh", 1 / 3.6e9),
    **dict.fromkeys(("bits", "errors", "P", "s"), Unit("")),
}


def shown_unit(metric: Metric) -> Unit:
    """Return the unit in which a metric is shown."""
    return _UNITS.get(metric.unit, Unit(metric.unit))


def nice_ceiling(value: float) -> float:
    """Return the first of 1, 2, 5, 10, 20 … from a value on: the end of a scale without a fixed one."""
    if not 0 < value < math.inf:
        return 1.0
    size = 10.0 ** math.floor(math.log10(value))
    return next(step * size for step in (1, 2, 5, 10) if step * size >= value * (1 - 1e-9))
