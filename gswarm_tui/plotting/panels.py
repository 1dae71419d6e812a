"""Panels of a plot: heatmaps of GPUs over time, curves over all GPUs, values of marks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, MaxNLocator

from gswarm_agent.frame import ERROR
from gswarm_agent.metrics import COUNTER, Metric
from gswarm_tui.common.units import nice_ceiling, shown_unit
from gswarm_tui.plotting import style
from gswarm_tui.plotting.annotations import Incident, SessionMark
from gswarm_tui.plotting.grid import Floats, MetricGrid

Pixels = npt.NDArray[np.uint8]
Doubles = npt.NDArray[np.float64]

MAX_NAME = 18
MAX_POINTS = 1500
FEW = 8
"""Up to this many GPUs or nodes get a line each; more are drawn as bands."""
_REASONS = {0.0: "free", 0.5: "capped", 1.0: "slowed"}
_PIXELS = (1500, 600)


def scale(grid: MetricGrid) -> tuple[float, float]:
    """Return the ends of a metric's scale in the unit shown; fixed ones if known."""
    metric, factor = grid.metric, shown_unit(grid.metric).factor
    known = grid.values[np.isfinite(grid.values)]
    highest = float(known.max()) if known.size else 0.0
    if metric.unit == "bits":
        return 0.0, 1.0
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
    grown = " since the start" if metric.kind == COUNTER else ""
    return f"{name}{' of nodes' if host else ''}{grown}" + (f" ({unit})" if unit else "")


def draw_heatmap(
    axes: Axes, grid: MetricGrid, ends: tuple[float, float], incidents: Sequence[Incident]
) -> None:
    """Draw a row for each device in the order of the grid, hatched where data is missing."""
    rows, bins = grid.values.shape
    period = bins * grid.width_s
    axes.add_patch(
        Rectangle(
            (0, 0),
            1,
            1,
            transform=axes.transAxes,
            facecolor=style.GAP,
            edgecolor=style.GAP_LINES,
            hatch="//////",
            linewidth=0,
            zorder=0,
        )
    )
    # Repeated cells stay sharp in viewers that smooth what they enlarge.
    across, down = max(1, _PIXELS[0] // bins), max(1, _PIXELS[1] // rows)
    picture = coloured(grid.values, ends).repeat(across, axis=1).repeat(down, axis=0)
    axes.imshow(
        picture, extent=(0, period, rows, 0), aspect="auto", interpolation="none", zorder=1, gid="heat"
    )
    axes.set_ylim(rows, 0)
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(True)
    places = {(device.node, device.gpu): row + 0.5 for row, device in enumerate(grid.devices)}
    groups = _groups(grid)
    places |= {(node, None): (first + last) / 2 for node, first, last in groups}
    serious = [t for t in incidents if t.severity == ERROR and (t.node, None) in places]
    points = [(t.at, places.get((t.node, t.gpu), places[t.node, None])) for t in serious]
    axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        linestyle="none",
        marker="x",
        markersize=3,
        markeredgewidth=0.8,
        color=style.SEVERITY["error"],
        path_effects=[withStroke(linewidth=2, foreground="white")],
        zorder=4,
    )
    _name_rows(axes, groups, [device.gpu for device in grid.devices])


def coloured(values: Floats, ends: tuple[float, float]) -> Pixels:
    """Return values as RGBA colours, transparent where unmeasured."""
    low, high = ends
    share = np.clip((np.nan_to_num(values, nan=low) - low) / max(high - low, 1e-9), 0, 1)
    picture: Pixels = style.RAMP[np.round(share * (len(style.RAMP) - 1)).astype(np.intp)]
    picture[~np.isfinite(values)] = 0
    return picture


def _groups(grid: MetricGrid) -> list[tuple[str, int, int]]:
    """Return each node with its first row and the row after its last."""
    found: list[tuple[str, int, int]] = []
    for row, device in enumerate(grid.devices):
        if found and found[-1][0] == device.node:
            found[-1] = (device.node, found[-1][1], row + 1)
        else:
            found.append((device.node, row, row + 1))
    return found


def _name_rows(axes: Axes, groups: Sequence[tuple[str, int, int]], gpus: Sequence[int | None]) -> None:
    """Draw the names of as many nodes as fit left of their rows, and lines between nodes."""
    height_pt = axes.get_position().height * axes.figure.get_figheight() * 72  # type: ignore[union-attr]
    row_pt = height_pt / len(gpus)
    numbered = gpus[0] is not None and row_pt >= style.SMALL * 0.95
    every = math.ceil((style.SMALL + 0.5) * len(groups) / height_pt)
    names = short_names([node for node, _, _ in groups])
    for number, (node, first, last) in enumerate(groups):
        if number % every == 0:
            axes.annotate(
                names[node],
                (0, (first + last) / 2),
                xycoords=("axes fraction", "data"),
                xytext=(-14 if numbered else -4, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=style.SMALL,
                color=style.INK,
            )
        if first and (last - first) * row_pt >= 3:
            axes.axhline(
                first, color="white", linewidth=0.8 if last - first > 1 and row_pt >= 4 else 0.4, zorder=2
            )
        if numbered:
            for row in range(first, last):
                axes.annotate(
                    str(gpus[row]),
                    (0, row + 0.5),
                    xycoords=("axes fraction", "data"),
                    xytext=(-4, 0),
                    textcoords="offset points",
                    ha="right",
                    va="center",
                    fontsize=style.SMALL - 1,
                    color=style.DIM,
                )


def draw_colour_bar(axes: Axes, grid: MetricGrid, ends: tuple[float, float], *, tall: bool) -> None:
    """Draw the colour bar, with more labels if it is ``tall``."""
    low, high = ends
    bar = style.RAMP[::-1, None, :].repeat(4, axis=1)
    axes.imshow(bar, extent=(0, 1, low, high), aspect="auto", interpolation="none", gid="heat")
    axes.set_xticks([])
    axes.yaxis.tick_right()
    axes.tick_params(axis="y", length=2, width=0.5, pad=2)
    if grid.metric.unit == "bits":
        axes.set_yticks(list(_REASONS), list(_REASONS.values()))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(4 if tall else 2, steps=[1, 2, 2.5, 5, 10]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylim(low, high)
    for spine in axes.spines.values():
        spine.set_visible(False)


def draw_curve(axes: Axes, grid: MetricGrid, ends: tuple[float, float], noun: str) -> None:
    """Draw the mean over all devices, with a line for each of a few, else with bands of the spread.

    For a counter, draw its sum.
    """
    values = grid.values[np.isfinite(grid.values).any(axis=1)]
    edges = np.arange(grid.values.shape[1] + 1) * grid.width_s
    handles: list[Line2D | Patch] = []
    with np.errstate(all="ignore"):
        known = np.isfinite(values)
        counts = known.sum(axis=0)
        sums = np.where(known, values, 0).sum(axis=0, dtype=np.float64)
        middle = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    if grid.metric.kind == COUNTER:
        middle = np.where(counts > 0, _carried(values).sum(axis=0), np.nan)
        ends = (0.0, nice_ceiling(float(np.nanmax(middle, initial=0.0))))
        word = "sum"
    elif len(values) > FEW:
        spread = _spread(values)
        for low, high, colour, label in (
            (spread[0], spread[3], style.OUTER, "lowest to highest"),
            (spread[1], spread[2], style.INNER, "middle 80 %"),
        ):
            (x, lower), (_, upper) = _stairs(edges, low), _stairs(edges, high)
            axes.fill_between(x, lower, upper, color=colour, linewidth=0, alpha=0.75, zorder=2)
            handles.insert(0, Patch(color=colour, alpha=0.75, linewidth=0, label=label))
        word = "mean"
    else:
        if len(values) > 1:
            for row in values:
                axes.plot(*_stairs(edges, row), color=style.INNER, linewidth=0.6, zorder=2)
            handles.append(Line2D([], [], color=style.INNER, linewidth=0.6, label=f"each {noun}"))
        word = "mean" if len(values) > 1 else noun
    axes.plot(*_stairs(edges, middle), color=style.LINE, zorder=3)
    handles.insert(0, Line2D([], [], color=style.LINE, label=word))
    _no_data(axes, edges, counts == 0)
    axes.set_ylim(*ends)
    frame(axes)
    if len(handles) > 1 or word == "sum":
        axes.legend(
            handles=handles,
            loc="lower right",
            bbox_to_anchor=(1, 0.99),
            ncols=3,
            frameon=False,
            fontsize=style.SMALL,
            labelcolor=style.DIM,
            handlelength=1.1,
            handleheight=0.6,
            handletextpad=0.4,
            columnspacing=1.0,
            borderpad=0,
            borderaxespad=0.35,
        )


def frame(axes: Axes) -> None:
    """Draw some round values on the left with grid lines."""
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(axis="y")
    axes.spines["left"].set_visible(False)


def _spread(values: Floats) -> Doubles:
    """Return minimum, 10th and 90th percentile, and maximum of each bin; NaN in empty bins."""
    ordered = np.sort(values, axis=0)  # NaN comes last
    counts = np.isfinite(values).sum(axis=0)
    columns = np.arange(values.shape[1])
    found = np.full((4, values.shape[1]), np.nan)
    for at, share in enumerate((0.0, 0.1, 0.9, 1.0)):
        place = np.maximum(counts - 1, 0) * share
        below, above = np.floor(place).astype(np.intp), np.ceil(place).astype(np.intp)
        part = place - below
        found[at] = ordered[below, columns] * (1 - part) + ordered[above, columns] * part
    return found


def _carried(values: Floats) -> Floats:
    """Return counters with gaps filled by the value before, and 0 before the first."""
    known = np.isfinite(values)
    last = np.maximum.accumulate(np.where(known, np.arange(values.shape[1]), 0), axis=1)
    return np.nan_to_num(np.take_along_axis(values, last, axis=1))


def _stairs(edges: Doubles, values: Floats | Doubles) -> tuple[Doubles, Doubles]:
    """Return x and y of a step line, level within each bin."""
    return np.repeat(edges, 2)[1:-1], np.repeat(values.astype(np.float64), 2)


def _no_data(axes: Axes, edges: Doubles, missing: npt.NDArray[np.bool_]) -> None:
    """Hatch the bins without any value."""
    steps = np.flatnonzero(np.diff(np.concatenate(([False], missing, [False]))))
    for first, last in steps.reshape(-1, 2):
        axes.axvspan(
            edges[first],
            edges[last],
            facecolor=style.GAP,
            edgecolor=style.GAP_LINES,
            hatch="//////",
            linewidth=0,
            zorder=1,
        )


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
