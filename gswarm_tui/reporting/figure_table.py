"""The tables of figures in a report, with their extremes marked, and how each figure is defined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gswarm_tui.analysis.summary import Figures
from gswarm_tui.analysis.summary_text import part_of, throttled_s
from gswarm_tui.common.quantities import DASH
from gswarm_tui.fleet.thresholds import BUSY_FROM_PCT
from gswarm_tui.reporting.html import Html, HtmlCell, cell, table

MOST_MARKED = 3
"""An extreme that more rows share isn't marked."""


@dataclass(frozen=True)
class FigureColumn:
    """A column of the tables: its head, its value in the head's unit, and how many digits are written."""

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
        "NVML's: the share of time in which any kernel ran. 100 % can be a single multiprocessor.",
    ),
    ("Mean, median, p95", "over all samples of single GPUs in the session; a max is the highest of them."),
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
        "the growth of the GPUs' own energy counters in the session: the boards, not the whole nodes.",
    ),
    (
        "Throttled",
        "GPU time in which clocks were held down, for the reason that took most: the power limit, heat, or a "
        "brake from outside.",
    ),
    ("Coverage", "the share of the session's GPU time that samples stand for."),
    (
        "Plots",
        "a point is the mean of what was measured in its piece of time, weighted by how long each sample "
        "stands for. Where nothing was measured, plots are hatched and curves are interrupted.",
    ),
)


def times(value: float | None, factor: float) -> float | None:
    """The product, None where the value isn't known."""
    return None if value is None else value * factor


def number(value: float | None, digits: int = 0, unit: str = "") -> str:
    """A number with its thousands apart, and its unit."""
    if value is None:
        return DASH
    return f"{value:,.{digits}f}" + (f" {unit}" if unit else "")


def figures_table(found: Sequence[Figures]) -> Html:
    """A row for each GPU, or for each node, with the extremes of each column marked."""
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
    """The lowest and the highest value as written, empty where too many share it or all are the same."""
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
