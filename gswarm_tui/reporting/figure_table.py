"""Tables of figures in a report, with marked extremes, and the definitions of the figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gswarm_tui.analysis.summary import Figures
from gswarm_tui.analysis.summary_text import part_of, throttled_s
from gswarm_tui.common.quantities import DASH
from gswarm_tui.fleet.thresholds import BUSY_FROM_PCT
from gswarm_tui.reporting.html import Html, HtmlCell, cell, table

MOST_MARKED = 3
"""An extreme shared by more rows isn't marked."""


@dataclass(frozen=True)
class FigureColumn:
    """A column: its heading, its value in the heading's unit, and its decimals."""

    head: str
    value: Callable[[Figures], float | None]
    digits: int = 0


COLUMNS = (
    FigureColumn("util mean (%)", lambda one: one.util_mean_pct, 1),
    FigureColumn("median", lambda one: one.util_median_pct),
    FigureColumn("p95", lambda one: one.util_p95_pct),
    FigureColumn("busy (%)", lambda one: times(part_of(one.busy_s, one.measured_s), 100), 1),
    FigureColumn("bubbles (%)", lambda one: times(one.bubble_share, 100), 1),
    FigureColumn("power mean (W)", lambda one: one.power_mean_w),
    FigureColumn("max (W)", lambda one: one.power_max_w),
    FigureColumn("memory max (GiB)", lambda one: times(one.mem_used_max_mib, 1 / 1024), 1),
    FigureColumn("energy (kWh)", lambda one: one.energy_kwh, 3),
    FigureColumn("max (°C)", lambda one: one.temp_max_c),
    FigureColumn("throttled (s)", throttled_s),
    FigureColumn("coverage (%)", lambda one: times(one.coverage, 100), 1),
)

DEFINITIONS = (
    (
        "Utilisation",
        "NVML's: the share of time in which any kernel ran. One busy multiprocessor can give 100 %.",
    ),
    ("Mean, median, p95", "over all samples of single GPUs in the session; max is the highest sample."),
    (
        "Busy",
        f"the share of the measured time in which a GPU's utilisation was {BUSY_FROM_PCT:g} % or more.",
    ),
    (
        "Bubbles",
        "idle phases of a GPU between two busy ones: their share of the measured time from its first busy "
        "sample to its last.",
    ),
    (
        "Energy",
        "the growth of the GPUs' energy counters in the session: of the boards, not of whole nodes.",
    ),
    (
        "Throttled",
        "GPU time with reduced clocks, for the longest reason: the power limit, heat, or an external power "
        "brake.",
    ),
    ("Coverage", "the share of the session's GPU time that samples cover."),
    (
        "Plots",
        "a point is the mean of the samples in its time, weighted by the time that each covers. Without "
        "data, heatmaps are hatched and curves interrupted.",
    ),
)


def times(value: float | None, factor: float) -> float | None:
    """Return the product, None for an unknown value."""
    return None if value is None else value * factor


def number(value: float | None, digits: int = 0, unit: str = "") -> str:
    """Format a number with thousands separators and its unit."""
    if value is None:
        return DASH
    return f"{value:,.{digits}f}" + (f" {unit}" if unit else "")


def figures_table(found: Sequence[Figures]) -> Html:
    """Return a table with a row for each GPU or node and marked extremes."""
    gpus = found[0].gpu_index is not None
    ends = [_ends(column, found) for column in COLUMNS]
    rows = [
        [
            one.node,
            one.gpu_index if gpus else one.gpus,
            *(_cell(column, one, end) for column, end in zip(COLUMNS, ends, strict=True)),
        ]
        for one in found
    ]
    heads = ["node", "GPU" if gpus else "GPUs", *(column.head for column in COLUMNS)]
    return table(heads, rows, right=frozenset(range(1, len(heads))))


def _ends(column: FigureColumn, found: Sequence[Figures]) -> tuple[str, ...]:
    """Return the lowest and highest value as text, empty if too many rows share it or all are equal."""
    values = sorted(value for one in found if (value := column.value(one)) is not None)
    written = [number(value, column.digits) for value in values]
    if len(written) < 3 or written[0] == written[-1]:
        return "", ""
    return tuple(end if written.count(end) <= MOST_MARKED else "" for end in (written[0], written[-1]))


def _cell(column: FigureColumn, one: Figures, ends: tuple[str, ...]) -> HtmlCell:
    text = number(column.value(one), column.digits)
    if text not in ends or text == "0":
        return cell(text, "n")
    mark, words = ("least", "lowest") if text == ends[0] else ("most", "highest")
    return cell(text, "n", mark, title=words)
