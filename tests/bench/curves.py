"""Plots of bench results, as PNG or SVG by the file's suffix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, GRID, ASIDE = "#1f2933", "#d5dae0", "#8a94a0"
COLOURS = ("#0b6e99", "#c2410c", "#4d7c0f", "#7e22ce", "#a16207", "#be185d", "#475569")


@dataclass(frozen=True)
class Curve:
    """A line with its name."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Panel:
    """Curves over a logarithmic axis; NaN isn't drawn.

    With ``in_proportion`` the other axis is logarithmic, too, and a line of slope 1 leads to the point with
    the highest load; else it begins at zero.
    """

    title: str
    x_name: str
    curves: Sequence[Curve]
    in_proportion: bool = False


def draw_over_time(curves: Sequence[Curve], unit: str, path: Path) -> None:
    """Draw one panel per curve over the same time, titled with name and unit, each axis from zero."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 1.5 * len(curves)), layout="constrained")
    for place, (curve, colour) in enumerate(zip(curves, COLOURS, strict=False), 1):
        axes = figure.add_subplot(len(curves), 1, place)
        axes.plot(curve.x, curve.y, color=colour, linewidth=1)
        axes.set_ylim(0, 1.1 * max(filter(math.isfinite, curve.y), default=1) or 1)
        _dress(axes, curve.name)
        axes.tick_params(labelbottom=place == len(curves))
    axes.set_xlabel(unit, fontsize=9)
    figure.savefig(path, dpi=150)


def draw_panels(panels: Sequence[Panel], path: Path, *, below: str = "") -> None:
    """Draw three panels per row, with the text ``below`` under all of them."""
    from matplotlib.figure import Figure

    rows = math.ceil(len(panels) / 3)
    figure = Figure(figsize=(13, 3.8 * rows + 0.4), layout="constrained")
    for place, panel in enumerate(panels, 1):
        axes = figure.add_subplot(rows, 3, place, xscale="log")
        for curve, colour in zip(panel.curves, COLOURS, strict=False):
            _draw(axes, curve, colour)
        if panel.in_proportion:
            _draw_proportion(axes, panel.curves)
            axes.set_yscale("log")
            axes.yaxis.set_minor_formatter(_between)
        else:
            axes.set_ylim(0, None)
        _dress(axes, panel.title)
        axes.margins(x=0.18)
        axes.set_xlabel(panel.x_name, fontsize=8)
        axes.xaxis.set_major_formatter(_plain)
        axes.xaxis.set_minor_formatter("")
        axes.yaxis.set_major_formatter(_plain)
    if below:
        figure.supxlabel(below, fontsize=8, color=ASIDE)
    figure.savefig(path, dpi=150)


def _draw(axes: Axes, curve: Curve, colour: str) -> None:
    """Draw a curve with its name beside its last point."""
    shown = [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if math.isfinite(y)]
    if not shown:
        return
    axes.plot(*zip(*shown, strict=True), color=colour, marker="o", markersize=4, linewidth=1.4)
    axes.annotate(
        curve.name,
        shown[-1],
        xytext=(7, 0),
        textcoords="offset points",
        color=colour,
        fontsize=8,
        va="center",
    )


def _draw_proportion(axes: Axes, curves: Sequence[Curve]) -> None:
    """Draw the line of a cost proportional to the load through the point with the highest load."""
    points = [
        (x, y)
        for curve in curves
        for x, y in zip(curve.x, curve.y, strict=True)
        if math.isfinite(y) and y > 0
    ]
    if len(points) < 2:
        return
    (right, high), low = max(points), min(y for _, y in points)
    left = max(min(x for x, _ in points), right * low / high)
    axes.plot([left, right], [high * left / right, high], color=ASIDE, linestyle=(0, (4, 3)), linewidth=1)
    middle = math.sqrt(left * right)
    axes.annotate(
        "in proportion", (middle, high * middle / right), xytext=(6, -10), textcoords="offset points",
        color=ASIDE, fontsize=8,
    )  # fmt: skip


def _dress(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=9, color=INK)
    axes.grid(True, color=GRID, linewidth=0.5)
    axes.tick_params(which="both", labelsize=8, colors=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _plain(value: float, _place: float) -> str:
    """Format a number of an axis without an exponent."""
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _between(value: float, place: float) -> str:
    """Return the ticks 2 and 5 of each decade if an axis covers little more than one decade."""
    return _plain(value, place) if f"{value:e}"[0] in "25" else ""
