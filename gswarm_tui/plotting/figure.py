"""Layout and drawing of a plot. Lengths are in inches, times in seconds from the period's start."""

from __future__ import annotations

import io
from dataclasses import dataclass
from datetime import tzinfo
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gswarm_tui.common.errors import UserError, quote
from gswarm_tui.common.quantities import duration
from gswarm_tui.plotting import panels, style
from gswarm_tui.plotting.plot_data import PlotData
from gswarm_tui.plotting.timescale import clock_ticks, moment, zone_name

DPI = 220
SUFFIXES = (".pdf", ".png", ".svg")
"""File suffixes of plots."""

_METADATA: dict[str, dict[str, str | None]] = {
    "pdf": {"Creator": "gswarm-tui", "CreationDate": None},
    "png": {"Software": "gswarm-tui"},
    "svg": {"Creator": "gswarm-tui", "Date": None},
}

WIDTH = 7.2
_RIGHT, _BAR = 0.6, 0.075
_HEAD, _FOOT = 0.52, 0.5
_TITLE, _CLOSE = 0.26, 0.08
_CURVE, _VALUES = 0.78, 0.62
_A_ROW, _LOWEST, _HIGHEST, _ROWS_AN_INCH = 0.098, 0.34, 3.5, 200
_NAME_LETTER = style.SMALL * 0.6 / 72


@dataclass(frozen=True)
class _Block:
    """A panel: its height and the space above it for a title."""

    kind: str
    at: int
    height: float
    above: float


def draw(data: PlotData, zone: tzinfo | None, kind: str, *, inline: bool = False) -> bytes:
    """Return a plot as a file of a kind: pdf, png or svg. ``zone`` None is local."""
    with style.plot_style():
        return figure_bytes(FigureBuilder(data, zone, inline=inline).draw(), kind, data.period.name)


class FigureBuilder:
    """Builder of one plot, with a heading above and a reading hint below.

    ``inline`` is for a page that has these itself.
    """

    def __init__(self, data: PlotData, zone: tzinfo | None, *, inline: bool = False) -> None:
        self._data = data
        self._zone = zone
        self._seconds = data.period.seconds
        self._inline = inline
        nodes = list(dict.fromkeys(device.node for grid in data.grids for device in grid.devices))
        self._names = panels.short_names(nodes)
        self._left = min(1.5, max(0.72, 0.3 + max(map(len, self._names.values()), default=0) * _NAME_LETTER))
        self._blocks = self._layout()
        self._inner = WIDTH - self._left - _RIGHT
        self._lanes = panels.build_lanes(data.marks, data.incidents)
        self._head = 0.04 if inline else _HEAD
        self._strip_height = panels.LANE_IN * len(self._lanes)
        self._height = (
            self._head
            + self._strip_height
            + sum(block.above + block.height for block in self._blocks)
            + (_FOOT - 0.16 if inline else _FOOT)
        )

    def _layout(self) -> list[_Block]:
        blocks = []
        heatmaps = sum(choice.heatmap for choice in self._data.choices)
        for at, (choice, grid) in enumerate(zip(self._data.choices, self._data.grids, strict=True)):
            if choice.curve:
                blocks.append(_Block("curve", at, _CURVE, _TITLE))
            if choice.heatmap:
                rows = len(grid.devices)
                most = _HIGHEST / max(1, heatmaps) ** 0.5
                height = max(_LOWEST, min(most, rows * _A_ROW), rows / _ROWS_AN_INCH)
                blocks.append(_Block("heatmap", at, height, _CLOSE if choice.curve else _TITLE))
        return blocks + [_Block("values", at, _VALUES, _TITLE) for at in range(len(self._data.values))]

    def draw(self) -> Figure:
        """Return the figure."""
        figure = Figure(figsize=(WIDTH, self._height))
        top = self._head
        drawn: list[Axes] = []
        if self._lanes:
            axes = self._add(figure, top, self._strip_height)
            panels.draw_lanes(axes, self._lanes, self._seconds, self._inner)
            drawn.append(axes)
            top += self._strip_height
        for block in self._blocks:
            top += block.above
            axes = self._add(figure, top, block.height)
            self._panel(figure, axes, block, top)
            drawn.append(axes)
            top += block.height
        self._clock(drawn[-1])
        self._lines(drawn)
        if not self._inline:
            self._heading(figure)
        return figure

    def _add(self, figure: Figure, top: float, height: float) -> Axes:
        axes = figure.add_axes(self._rect(self._left, top, self._inner, height))
        axes.patch.set_visible(False)  # it would cover half of a neighbour's line
        axes.set_xlim(0, self._seconds)
        axes.set_xticks([])
        return axes

    def _rect(
        self, left: float, top: float, width: float, height: float
    ) -> tuple[float, float, float, float]:
        below = self._height - top - height
        return left / WIDTH, below / self._height, width / WIDTH, height / self._height

    def _panel(self, figure: Figure, axes: Axes, block: _Block, top: float) -> None:
        data = self._data
        if block.kind == "values":
            name = data.values[block.at]
            panels.draw_values(axes, name, data.marks, style.VALUES[block.at % len(style.VALUES)])
            panels.write_title(axes, f"{panels.clipped(name, 60)} (from marks)", block.height)
            return
        grid, choice = data.grids[block.at], data.choices[block.at]
        ends = panels.scale(grid)
        if block.kind == "curve":
            panels.draw_curve(axes, grid, ends, "node" if grid.host else "GPU")
        else:
            panels.draw_heatmap(axes, grid, ends)
            left, height = WIDTH - _RIGHT + 0.08, min(block.height, 1.2)
            bar = figure.add_axes(self._rect(left, top, _BAR, height))
            panels.draw_colour_bar(bar, ends, tall=block.height > 0.6)
        if block.kind == "curve" or not choice.curve:
            panels.write_title(axes, panels.title(grid.metric, host=grid.host), block.height)
        axes.set_xlim(0, self._seconds)

    def _clock(self, last: Axes) -> None:
        """Draw the time of day below the last panel."""
        period = self._data.period
        ticks = clock_ticks(period.started_at, self._seconds, self._zone)
        last.set_xticks([at for at, _ in ticks], [label for _, label in ticks])
        last.set_xlabel(
            f"local time, {zone_name(period.started_at, self._zone)}", fontsize=style.SMALL, labelpad=2
        )

    def _lines(self, drawn: list[Axes]) -> None:
        """Draw a line through all panels for each mark, unless there are too many."""
        marks = self._data.marks
        if not marks or len(marks) > panels.MAX_LINES:
            return
        dashed: Any = {
            "color": style.DIM,
            "linewidth": 0.5,
            "linestyle": (0, (3, 2)),
            "alpha": 0.6,
            "zorder": 2.5,
        }
        for axes in drawn[1:]:  # the first holds their labels
            low, high = axes.get_ylim()
            axes.vlines([mark.at for mark in marks], low, high, **dashed)
            axes.set_ylim(low, high)

    def _heading(self, figure: Figure) -> None:
        data, period = self._data, self._data.period
        left, height = self._left / WIDTH, self._height
        name: Any = {"fontsize": style.LARGE, "fontweight": "bold", "va": "top"}
        subtitle: Any = {"fontsize": style.USUAL, "color": style.DIM, "va": "top"}
        hint: Any = {"fontsize": style.SMALL - 0.5, "color": style.DIM, "va": "bottom"}
        figure.text(left, 1 - 0.13 / height, panels.clipped(period.name, 76), **name)
        figure.text(left, 1 - 0.33 / height, self._subtitle(), **subtitle)
        figure.text(left, 0.07 / height, reading_hint(data), **hint)

    def _subtitle(self) -> str:
        period = self._data.period
        end = moment(period.until, self._zone, like=period.started_at)
        words = [f"{moment(period.started_at, self._zone)} – {end}", duration(self._seconds)]
        if period.ended_at is None:
            words[1] += " so far" if self._data.running else ", interrupted"
        if period.job:
            words.append(f"job {period.job}")
        return "  ·  ".join([*words, self._data.devices])


def reading_hint(data: PlotData) -> str:
    """Return a sentence on what a point of the plot shows; nothing without metrics."""
    if not data.grids:
        return ""
    width = data.grids[0].width_s
    words = f"Each point is the mean of {f'{width:.0f}' if width >= 10 else f'{width:.2g}'} s"
    if any(np.isnan(grid.values).any() for grid in data.grids):
        words += "; hatched where there is no data"
    return words + "."


def require_suffix(path: Path) -> Path:
    """Return the path if its suffix is one of a plot. Raises UserError."""
    if path.suffix.lower() not in SUFFIXES:
        what = f"has the suffix {quote(path.suffix)}" if path.suffix else "has no suffix"
        raise UserError(f"{path} {what}; name a .pdf, .png or .svg file.")
    return path


def figure_bytes(figure: Figure, kind: str, title: str) -> bytes:
    """Return a figure as a file of a kind (pdf, png, svg); call it within ``plot_style``."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=DPI, metadata=_METADATA[kind] | {"Title": title})
    return buffer.getvalue()
