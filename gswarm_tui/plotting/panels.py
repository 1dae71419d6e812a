"""Panels of a plot: lanes of annotations, heatmaps and curves of GPUs, values of marks."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from gswarm_agent.frame import gpu_label
from gswarm_agent.metrics import Metric
from gswarm_tui.common.units import nice_ceiling, shown_unit
from gswarm_tui.fleet.events import EVENT_KINDS
from gswarm_tui.plotting import style
from gswarm_tui.plotting.annotations import Incident, SessionMark
from gswarm_tui.plotting.grid import Floats, MetricGrid

Pixels = npt.NDArray[np.uint8]
Doubles = npt.NDArray[np.float64]

MAX_NAME = 18
MAX_POINTS = 1500
FEW = 8
"""Up to this many GPUs or nodes get a line each; more are drawn as bands."""
_PIXELS = (1500, 600)
_BOUNDARY: Any = {"color": style.FAINT, "linewidth": 0.6, "clip_on": False}
_LEGEND: Any = {
    "loc": "lower right", "ncols": 3, "frameon": False, "fontsize": style.SMALL, "labelcolor": style.DIM,
    "handlelength": 1.1, "handleheight": 0.6, "handletextpad": 0.4,
    "columnspacing": 1.0, "borderpad": 0, "borderaxespad": 0.35,
}  # fmt: skip
LANE_IN = 0.135
MAX_LINES = 60
_MAX_LETTERS = 26
_PLACES = 2000
_LETTER_PT = style.SMALL * 0.56


def scale(grid: MetricGrid) -> tuple[float, float]:
    """Return the lowest and highest value of a metric's scale, in the unit shown."""
    metric, factor = grid.metric, shown_unit(grid.metric).factor
    known = grid.values[np.isfinite(grid.values)]
    highest = float(known.max()) if known.size else 0.0
    if metric.unit == "°C":
        lowest = float(known.min()) if known.size else 0.0
        return math.floor(lowest / 10) * 10, max(math.ceil(highest / 10), math.floor(lowest / 10) + 1) * 10
    if metric.unit == "%" and metric.top:
        return 0.0, metric.top
    tops = [top for d in grid.devices if metric.top_fact and (top := d.facts.get(metric.top_fact))]
    if tops:
        return 0.0, max(max(tops) * factor, highest)
    return 0.0, nice_ceiling(highest)


def title(metric: Metric, *, host: bool) -> str:
    """Return the title of a metric's panel: "GPU util (%)", "CPU of nodes (%)"."""
    unit = shown_unit(metric).name
    name = metric.label[0].upper() + metric.label[1:]
    return f"{name}{' of nodes' if host else ''}" + (f" ({unit})" if unit else "")


def write_title(axes: Axes, text: str, height_in: float) -> None:
    """Write the title above a panel of this height."""
    look: Any = {"fontsize": style.USUAL, "fontweight": "bold", "va": "bottom"}
    axes.text(0, 1 + 0.045 / height_in, text, transform=axes.transAxes, **look)


def draw_heatmap(axes: Axes, grid: MetricGrid, ends: tuple[float, float]) -> None:
    """Draw a row for each device in the order of the grid, hatched where data is missing."""
    rows, bins = grid.values.shape
    period = bins * grid.width_s
    axes.add_patch(Rectangle((0, 0), 1, 1, transform=axes.transAxes, zorder=0, **style.ROWS_HATCHED))
    # Repeated cells stay sharp in viewers that smooth what they enlarge.
    across, down = max(1, _PIXELS[0] // bins), max(1, _PIXELS[1] // rows)
    picture = coloured(grid.values, ends).repeat(across, axis=1).repeat(down, axis=0)
    axes.imshow(picture, extent=(0, period, rows, 0), aspect="auto", interpolation="none", zorder=1)
    axes.set_ylim(rows, 0)
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(True)
    _name_rows(axes, grid)


def coloured(values: Floats, ends: tuple[float, float]) -> Pixels:
    """Return values as RGBA colours, transparent where unmeasured."""
    low, high = ends
    share = np.clip((np.nan_to_num(values, nan=low) - low) / max(high - low, 1e-9), 0, 1)
    picture: Pixels = style.RAMP[np.round(share * (len(style.RAMP) - 1)).astype(np.intp)]
    picture[~np.isfinite(values)] = 0
    return picture


def _name_rows(axes: Axes, grid: MetricGrid) -> None:
    """Draw the names of as many nodes as fit left of their rows, and ticks between nodes.

    A line through the heatmap would look like the row of an idle GPU.
    """
    height_pt = axes.get_position().height * axes.figure.get_figheight() * 72  # type: ignore[union-attr]
    row_pt = height_pt / len(grid.devices)
    numbered = not grid.host and row_pt >= style.SMALL * 0.95
    by_node = groupby(range(len(grid.devices)), key=lambda row: grid.devices[row].node)
    groups = [(node, list(rows)) for node, rows in by_node]
    every = math.ceil((style.SMALL + 0.5) * len(groups) / height_pt)
    names = short_names([node for node, _ in groups])
    for number, (node, rows) in enumerate(groups):
        first = rows[0]
        if number % every == 0:
            write_beside(axes, names[node], first + len(rows) / 2, -14 if numbered else -4, style.INK)
        if first and len(rows) * row_pt >= style.SMALL:
            axes.plot((0, -0.008), (first, first), transform=axes.get_yaxis_transform(), **_BOUNDARY)
        for row in rows if numbered else ():
            label = gpu_label(grid.devices[row].gpu or 0)
            write_beside(axes, label, row + 0.5, -4, style.DIM, size=style.SMALL - 1)


def write_beside(
    axes: Axes, text: str, y: float, distance_pt: float, colour: str, *, size: float = style.SMALL
) -> None:
    """Write a text left of a panel, or right of it for a positive distance."""
    axes.annotate(
        text,
        (int(distance_pt > 0), y),
        xycoords=("axes fraction", "data"),
        xytext=(distance_pt, 0),
        textcoords="offset points",
        ha="left" if distance_pt > 0 else "right",
        va="center_baseline",
        fontsize=size,
        color=colour,
    )


def draw_colour_bar(axes: Axes, ends: tuple[float, float], *, tall: bool) -> None:
    """Draw the colour bar, with more labels if it is ``tall``."""
    low, high = ends
    bar = style.RAMP[::-1, None, :].repeat(4, axis=1)
    axes.imshow(bar, extent=(0, 1, low, high), aspect="auto", interpolation="none")
    axes.set_xticks([])
    axes.yaxis.tick_right()
    axes.tick_params(axis="y", length=2, width=0.5, pad=2)
    axes.yaxis.set_major_locator(MaxNLocator(4 if tall else 2, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylim(low, high)
    for spine in axes.spines.values():
        spine.set_visible(False)


def draw_curve(axes: Axes, grid: MetricGrid, ends: tuple[float, float], noun: str) -> None:
    """Draw the mean over all devices, with a line for each of a few, else with bands of the spread."""
    values = grid.values[np.isfinite(grid.values).any(axis=1)]
    edges = np.arange(grid.values.shape[1] + 1) * grid.width_s
    handles: list[Line2D | Patch] = []
    known = np.isfinite(values)
    counts = known.sum(axis=0)
    sums = np.where(known, values, 0).sum(axis=0, dtype=np.float64)
    middle = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    word = "mean" if len(values) > 1 else noun
    if len(values) > FEW:
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # bins without a value
            spread = np.nanquantile(values, (0, 0.1, 0.9, 1), axis=0)
        for low, high, colour, label in (
            (spread[0], spread[3], style.OUTER, "lowest to highest"),
            (spread[1], spread[2], style.INNER, "middle 80 %"),
        ):
            (x, lower), (_, upper) = _stairs(edges, low), _stairs(edges, high)
            axes.fill_between(x, lower, upper, color=colour, linewidth=0, alpha=0.75, zorder=2)
            handles.insert(0, Patch(color=colour, alpha=0.75, linewidth=0, label=label))
    elif len(values) > 1:
        for row in values:
            axes.plot(*_stairs(edges, row), color=style.INNER, linewidth=0.6, zorder=2)
        handles.append(Line2D([], [], color=style.INNER, linewidth=0.6, label=f"each {noun}"))
    axes.plot(*_stairs(edges, middle), color=style.LINE, zorder=3)
    handles.insert(0, Line2D([], [], color=style.LINE, label=word))
    changes = np.flatnonzero(np.diff(np.concatenate(([False], counts == 0, [False]))))
    for first, end in changes.reshape(-1, 2):
        axes.axvspan(edges[first], edges[end], zorder=1, **style.HATCHED)
    axes.set_ylim(*ends)
    frame(axes)
    if len(handles) > 1:
        axes.legend(handles=handles, bbox_to_anchor=(1, 0.99), **_LEGEND)


def frame(axes: Axes) -> None:
    """Draw the value axis: a few round values on the left with grid lines."""
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(axis="y")
    axes.spines["left"].set_visible(False)


def _stairs(edges: Doubles, values: Floats | Doubles) -> tuple[Doubles, Doubles]:
    """Return x and y of a step line, level within each bin."""
    return np.repeat(edges, 2)[1:-1], np.repeat(values.astype(np.float64), 2)


def draw_values(axes: Axes, name: str, marks: Sequence[SessionMark], colour: str) -> None:
    """Draw a value of marks as points joined by lines."""
    found = [(mark.at, mark.values[name]) for mark in marks if name in mark.values]
    axes.plot(
        [at for at, _ in found],
        [value for _, value in found],
        color=colour,
        marker="o",
        markersize=2.6 if len(found) <= 60 else 1.2 if len(found) <= MAX_POINTS else 0,
        linewidth=0.7 if len(found) <= MAX_POINTS else 0.3,
        zorder=3,
        clip_on=False,
    )
    axes.margins(y=0.15)
    frame(axes)


def short_names(nodes: Sequence[str]) -> dict[str, str]:
    """Return short names of nodes: without the domain if they stay distinct, cut at the front."""
    hosts = {node: node.partition(".")[0] for node in nodes}
    if len(set(hosts.values())) < len(hosts) or any(host.isdigit() or not host for host in hosts.values()):
        hosts = {node: node for node in nodes}
    return {
        node: host if len(host) <= MAX_NAME else "…" + host[1 - MAX_NAME :] for node, host in hosts.items()
    }


def clipped(text: str, most: int) -> str:
    """Cut a text to at most ``most`` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


@dataclass(frozen=True)
class Lane:
    """A lane above the panels with marks as labels, or events as ticks."""

    name: str
    labels: tuple[tuple[float, str], ...] = ()
    ticks: tuple[tuple[float, str], ...] = ()


def build_lanes(marks: Sequence[SessionMark], incidents: Sequence[Incident]) -> list[Lane]:
    """Return the lanes from top to bottom."""
    lanes = []
    if marks:
        lanes.append(
            Lane("marks", labels=tuple((mark.at, clipped(mark.label, _MAX_LETTERS)) for mark in marks))
        )
    kinds: dict[str, list[tuple[float, str]]] = {}
    for incident in incidents:
        # A kind that this version doesn't know shares the lane of its severity.
        label = incident.kind.replace("_", " ") if incident.kind in EVENT_KINDS else incident.severity
        kinds.setdefault(label, []).append((incident.at, incident.severity))
    return lanes + [Lane(word, ticks=tuple(ticks)) for word, ticks in kinds.items()]


def draw_lanes(axes: Axes, lanes: Sequence[Lane], seconds: float, width_in: float) -> None:
    """Draw the lanes from top to bottom."""
    a_letter = _LETTER_PT / 72 / width_in * max(seconds, 1e-9)
    axes.set_ylim(len(lanes), 0)
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    for at, lane in enumerate(lanes):
        y = at + 0.5
        if lane.name:
            write_beside(axes, lane.name, y, -4, style.DIM)
        _labels(axes, lane.labels, y, a_letter, seconds)
        times: dict[str, list[float]] = {}
        for when, severity in lane.ticks:
            times.setdefault(style.SEVERITY.get(severity, style.DIM), []).append(when)
        for colour, of_it in times.items():
            axes.vlines(_distinct_times(of_it, seconds), y - 0.36, y + 0.36, color=colour, linewidth=1.0)
        if lane.ticks:
            write_beside(axes, f"× {len(lane.ticks)}", y, 4, style.DIM)


def _labels(
    axes: Axes, labels: Sequence[tuple[float, str]], y: float, a_letter: float, seconds: float
) -> None:
    """Draw a short tick for each label, and above it the labels that fit before the next one drawn."""
    times = _distinct_times([at for at, _ in labels], seconds)
    axes.vlines(times, y + 0.32, y + 0.5, color=style.INK, linewidth=0.6)
    free_until = seconds + 4 * a_letter
    for at, label in reversed(labels):
        if at + (len(label) + 1) * a_letter <= free_until:
            axes.text(at, y - 0.1, label, va="center_baseline", fontsize=style.SMALL)
            free_until = at


def _distinct_times(times: Sequence[float], seconds: float) -> list[float]:
    """Return the times without those that would be drawn over another."""
    return list({round(at / max(seconds, 1e-9) * _PLACES): at for at in times}.values())
