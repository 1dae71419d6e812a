"""Figures as the report writes them, "–" where nothing was measured, and their definitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gswarm_tui.fleet.totals import BUSY_FROM_PCT
from gswarm_tui.reporting.html import Cell, cell

DASH = "–"
MOST_MARKED = 3
"""An extreme that more rows share isn't marked."""


@dataclass(frozen=True)
class Figure:
    """A column of the tables: its head, where it comes from and how it is written."""

    head: str
    name: str
    digits: int = 0
    factor: float = 1.0

    def of(self, row: Mapping[str, Any]) -> float | None:
        """The value in the unit of the head."""
        value = busy_share(row) if self.name == "busy" else row.get(self.name)
        return None if value is None else float(value) * self.factor

    def written(self, row: Mapping[str, Any]) -> str:
        """The value without its unit."""
        return number(self.of(row), self.digits)


COLUMNS = (
    Figure("util mean (%)", "util_mean_pct", 1),
    Figure("median", "util_median_pct", 0),
    Figure("p95", "util_p95_pct", 0),
    Figure("busy (%)", "busy", 1, 100),
    Figure("power mean (W)", "power_mean_w", 0),
    Figure("max (W)", "power_max_w", 0),
    Figure("memory max (GiB)", "mem_used_max_mib", 1, 1 / 1024),
    Figure("energy (kWh)", "energy_kwh", 3),
    Figure("throttled (s)", "throttled_s", 0),
    Figure("coverage (%)", "coverage", 1, 100),
)

DEFINITIONS = (
    (
        "Utilisation",
        "NVML's: the share of time in which any kernel ran. 100 % can be a single multiprocessor.",
    ),
    ("Mean, median, p95, max", "over all samples of single GPUs in the session."),
    (
        "Busy",
        f"the share of the measured time in which a GPU's utilisation was {BUSY_FROM_PCT:g} % or more.",
    ),
    (
        "Energy",
        "the growth of the GPUs' own energy counters in the session; board power, not the whole node.",
    ),
    (
        "Throttled",
        "GPU time in which clocks were held down by the power limit, by temperature, or by a brake.",
    ),
    ("Coverage", "the share of the session's GPU time that samples stand for."),
    (
        "Plots",
        "a point is the mean of what was measured in its piece of time, weighted by how long each sample "
        "stands for. Where nothing was measured, the plot is hatched and curves are interrupted.",
    ),
)


def busy_share(row: Mapping[str, Any]) -> float | None:
    """The share of the measured time with work, 0 to 1."""
    busy, idle = row.get("busy_s"), row.get("idle_s")
    return busy / (busy + idle) if busy is not None and idle is not None and busy + idle > 0 else None


def number(value: float | None, digits: int = 0, unit: str = "") -> str:
    """A number with thousands apart, and its unit."""
    if value is None:
        return DASH
    return f"{value:,.{digits}f}" + (f" {unit}" if unit else "")


def with_throttled(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with the time throttled for whatever reason, as far as that was measured."""
    parts = [row[f"throttle_{why}_s"] for why in ("power", "thermal", "brake")]
    known = [part for part in parts if part is not None]
    return {**row, "throttled_s": sum(known) if known else None}


def rows(found: Sequence[Mapping[str, Any]], named: Iterable[Sequence[object]]) -> list[list[object]]:
    """Table rows: names, then all figures, with the extremes of each column marked."""
    ends = {figure: _ends(figure, found) for figure in COLUMNS}
    return [
        [*names, *(_cell(figure, row, ends[figure]) for figure in COLUMNS)]
        for names, row in zip(named, found, strict=True)
    ]


def _ends(figure: Figure, found: Sequence[Mapping[str, Any]]) -> tuple[str, ...] | None:
    """The lowest and highest value as written; empty where many share it. None if nothing stands out."""
    values = [value for row in found if (value := figure.of(row)) is not None]
    if len(values) < 3:
        return None
    written = [number(value, figure.digits) for value in sorted(values)]
    low, high = written[0], written[-1]
    if low == high:
        return None
    return tuple(end if written.count(end) <= MOST_MARKED else "" for end in (low, high))


def _cell(figure: Figure, row: Mapping[str, Any], ends: tuple[str, ...] | None) -> Cell:
    text = figure.written(row)
    mark = "" if ends is None else "least" if text == ends[0] else "most" if text == ends[1] else ""
    return cell(text, "n", *filter(None, [mark]), title={"most": "highest", "least": "lowest"}.get(mark))
