"""Plot of a trial: speed-up and efficiency over the number of GPUs."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from gswarm_tui.plotting import panels, style
from gswarm_tui.plotting.figure import WIDTH, figure_bytes
from gswarm_tui.trials.plan import PACKED, SPREAD
from gswarm_tui.trials.result_text import command_text, names_of, sentence
from gswarm_tui.trials.results import PlacementResult, TrialResults

_HEAD, _FOOT, _LEFT, _RIGHT = 0.62, 0.38, 0.55, 0.15
_PANEL, _ABOVE, _BETWEEN = 2.0, 0.3, 0.62
_LETTERS = 118
_SERIES = ((PACKED, style.VALUES[0], "o"), (SPREAD, style.VALUES[1], "s"))
_Value = Callable[[PlacementResult], float | None]


def draw_trial(results: TrialResults, kind: str) -> bytes:
    """Return the plot of a trial as a file of a kind: pdf, png or svg."""
    with style.plot_style():
        return figure_bytes(_figure(results), kind, command_text(results))


def _figure(results: TrialResults) -> Figure:
    height = _HEAD + _ABOVE + _PANEL + _FOOT
    figure = Figure(figsize=(WIDTH, height))
    width = (WIDTH - _LEFT - _RIGHT - _BETWEEN) / 2
    for at, draw in enumerate((_draw_speed_up, _draw_efficiency)):
        left = _LEFT + at * (width + _BETWEEN)
        axes = figure.add_axes((left / WIDTH, _FOOT / height, width / WIDTH, _PANEL / height))
        draw(axes, results)
        _across(axes, results)
    _heading(figure, results, height)
    return figure


def _draw_speed_up(axes: Axes, results: TrialResults) -> None:
    panels.write_title(axes, "Speed-up", _PANEL)
    sizes = [row.placement.gpus for row in results.compared]
    if results.baseline is not None:
        first = results.baseline.placement.gpus
        ends = [min(sizes), max(sizes)]
        faint: Any = {"color": style.FAINT, "linewidth": 0.7, "linestyle": (0, (4, 2)), "zorder": 1}
        axes.plot(ends, [end / first for end in ends], label="ideal", **faint)
    _points(axes, results, lambda row: row.speed_up, "measured")
    if (knee := results.knee) is not None and knee.speed_up is not None:
        ring: Any = {"marker": "o", "s": 60, "facecolors": "none", "edgecolors": style.INK, "zorder": 5}
        axes.scatter([knee.placement.gpus], [knee.speed_up], linewidths=0.9, label="knee", **ring)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} ×"))
    if axes.get_legend_handles_labels()[0]:
        look: Any = {"frameon": False, "labelcolor": style.DIM, "handlelength": 1.6, "borderpad": 0.1}
        axes.legend(loc="best", fontsize=style.SMALL, **look)


def _draw_efficiency(axes: Axes, results: TrialResults) -> None:
    panels.write_title(axes, "Efficiency", _PANEL)
    _points(axes, results, lambda row: row.efficiency, "")
    most = max((row.efficiency for row in results.compared if row.efficiency), default=1.0)
    axes.set_ylim(0, max(1.05, most * 1.05))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))


def _points(axes: Axes, results: TrialResults, value_of: _Value, name: str) -> None:
    """Draw a line through the medians of each kind of placement."""
    several = not names_of(results).same_spread
    for spread, colour, marker in _SERIES:
        own = [
            (row.placement.gpus, value)
            for row in results.compared
            if row.placement.spread == spread and (value := value_of(row)) is not None
        ]
        if own:
            label = " ".join(filter(None, [name, spread if several else ""]))
            look: Any = {"color": colour, "marker": marker, "markersize": 3.2, "zorder": 3, "clip_on": False}
            axes.plot(*zip(*own, strict=True), label=label, **look)


def _across(axes: Axes, results: TrialResults) -> None:
    sizes = sorted({row.placement.gpus for row in results.rows})
    axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    margin = 1.12 if len(sizes) > 1 else 2.0
    axes.set_xlim(sizes[0] / margin, sizes[-1] * margin)
    axes.grid(axis="y")
    axes.set_xlabel("GPUs", fontsize=style.SMALL, labelpad=2)


def _heading(figure: Figure, results: TrialResults, height: float) -> None:
    left = _LEFT / WIDTH
    name: Any = {"fontsize": style.LARGE, "fontweight": "bold", "va": "top"}
    words: Any = {"fontsize": style.USUAL, "color": style.DIM, "va": "top"}
    figure.text(left, 1 - 0.13 / height, panels.clipped(command_text(results), 76), **name)
    lines = textwrap.wrap(sentence(results), _LETTERS)[:2]
    figure.text(left, 1 - 0.34 / height, "\n".join(lines), **words)
