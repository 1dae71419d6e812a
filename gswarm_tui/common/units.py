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
    "bits": Unit(""),
    "errors": Unit(""),
    "P": Unit(""),
}


_WRITTEN: dict[str, dict[str, float]] = {
    "MiB": {"k kb ki kib": 1 / 1024, "m mb mi mib": 1, "g gb gi gib": 1024, "t tb ti tib": 1024**2},
    "MB/s": {"k kb kb/s": 1e-3, "m mb mb/s": 1, "g gb gb/s": 1e3, "t tb tb/s": 1e6},
    "mJ": {"j": 1e3, "kj": 1e6, "wh": 3.6e6, "kwh": 3.6e9, "mwh": 3.6e12},
    "W": {"w": 1, "k kw": 1e3},
    "MHz": {"m mhz": 1, "g ghz": 1e3},
    "°C": {"c °c": 1},
    "%": {"%": 1},
    "errors": {"k": 1e3, "m": 1e6, "g": 1e9},
    "G/s": {"m m/s": 1e-3, "g g/s": 1, "t t/s": 1e3},
    "M/s": {"k k/s": 1e-3, "m m/s": 1, "g g/s": 1e3},
    "1/s": {"k k/s": 1e3, "m m/s": 1e6, "1/s": 1},
    "GFLOP/s": {"g gflop/s": 1, "t tflop/s": 1e3},
}
"""Spellings of a user's unit in lower case, and their factors to the catalogue's unit."""


def written_units(metric: Metric) -> dict[str, float]:
    """Return the units that a user may write after a metric's number, in lower case, in the metric's unit."""
    spellings = _WRITTEN.get(metric.unit, {})
    return {name: factor for names, factor in spellings.items() for name in names.split()}


def shown_unit(metric: Metric) -> Unit:
    """Return the unit in which a metric is shown."""
    return _UNITS.get(metric.unit, Unit(metric.unit))


def nice_ceiling(value: float) -> float:
    """Return the first of 1, 2, 5, 10, 20 … from a value on: the end of a scale without a fixed one."""
    if not 0 < value < math.inf:
        return 1.0
    size = 10.0 ** math.floor(math.log10(value))
    return next(step * size for step in (1, 2, 5, 10) if step * size >= value * (1 - 1e-9))
