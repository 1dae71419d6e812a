"""Plots of what benches found, as PNG or SVG by the file's name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

INK, GRID = "#1f2933", "#d5dae0"
COLOURS = ("#0b6e99", "#c2410c", "#4d7c0f", "#7e22ce", "#a16207", "#be185d")


@dataclass(frozen=True)
class Curve:
    """A line with its name, which says its unit."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def draw_over_time(curves: Sequence[Curve], unit: str, path: Path) -> None:
    """One panel a curve, each from zero, over the same time."""
    figure = Figure(figsize=(10, 1.5 * len(curves)), layout="constrained")
    for place, (curve, colour) in enumerate(zip(curves, COLOURS, strict=False), 1):
        axes = figure.add_subplot(len(curves), 1, place)
        axes.plot(curve.x, curve.y, color=colour, linewidth=1)
        axes.set_title(curve.name, loc="left", fontsize=9, color=INK)
        axes.set_ylim(0, 1.1 * max(curve.y, default=1) or 1)
        axes.grid(True, color=GRID, linewidth=0.5)
        axes.tick_params(labelsize=8, labelbottom=place == len(curves))
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    axes.set_xlabel(unit, fontsize=9)
    figure.savefig(path, dpi=150)
