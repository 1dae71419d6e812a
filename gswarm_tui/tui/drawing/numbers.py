"""Names and formats of metrics: one spelling on every screen, "–" where nothing was measured."""

from __future__ import annotations

import math
from collections.abc import Collection

from gswarm_agent.metrics import COUNTERS, HOST_METRICS, REASON_POWER_CAP, Metric
from gswarm_tui.common.quantities import DASH, age
from gswarm_tui.common.units import shown_unit
from gswarm_tui.fleet.throttling import HARMFUL


def digits(value: float) -> str:
    """Format a number in at most four characters: "0", "0.3", "9.8", "98", "1980", "12k", "3.4M"."""
    size = abs(value)
    if size < 0.05:
        return "0"
    if size < 9.95:
        return f"{value:.1f}"
    if size < 9999.5:
        return f"{value:.0f}"
    for suffix in "kMGT":
        value /= 1000
        if abs(value) < 9.95:
            return f"{value:.1f}{suffix}"
        if abs(value) < 999.5:
            return f"{value:.0f}{suffix}"
    return f"{value:.0e}"


def cell(value: float | None, metric: Metric) -> str:
    """Format a metric for a cell: at most four characters, without the unit."""
    if value is None or math.isnan(value):
        return DASH
    if metric.unit == "bits":
        slowed, capped = int(value) & HARMFUL, int(value) & REASON_POWER_CAP
        return "slow" if slowed else "cap" if capped else "ok"
    if metric.unit == "P":
        return f"P{value:.0f}"
    if metric.unit == "s":
        return age(value).replace(" min", "m").replace(" ", "")
    counts = not metric.unit and metric.sql != "FLOAT"
    if counts or metric.unit in ("%", "°C", "W", "MHz", "errors", "rows", "lanes"):
        return f"{value:.0f}" if value < 9999.5 else digits(value)
    shown = value * shown_unit(metric).factor
    if metric.unit == "mJ" and 0.0005 <= shown < 0.0995:  # a GPU's first minutes: ".012"
        return f"{shown:.3f}"[1:]
    return digits(shown)


def cell_width(metric: Metric, top: float) -> int:
    """Return the characters that ``cell`` needs for values up to ``top``: 3 or 4."""
    if metric.unit in ("%", "°C", "P", "MiB", "MB/s", "W"):
        return 3 if top * shown_unit(metric).factor < 999.5 else 4
    return 4


def quantity(value: float | None, metric: Metric) -> str:
    """Format a metric with its unit: "98 %", "61 GiB", "0.3 GB/s", "P0"."""
    unit = shown_unit(metric).name
    number = cell(value, metric)
    return f"{number} {unit}" if unit and number != DASH else number


def label(metric: Metric) -> str:
    """Return a metric's title."""
    return f"{metric.label} since start" if metric.name == "energy_mj" else metric.label


def meaning(metric: Metric) -> str:
    """Return what a metric's numbers mean on the screen, where energy and bits differ from the catalogue."""
    if metric.name == "energy_mj":
        return "Energy used since the recording began"
    return metric.meaning.partition(":")[0] if metric.unit == "bits" else metric.meaning


def host_metrics(groups: Collection[str]) -> list[Metric]:
    """Return the host metrics to choose from: hardware counters only while their group is on."""
    return [metric for metric in HOST_METRICS if metric.group != COUNTERS or COUNTERS in groups]
