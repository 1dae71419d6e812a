"""Plot of figures of many runs by the start of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any

from matplotlib import dates
from matplotlib.figure import Figure

from gswarm_tui.analysis.comparison import ComparedRun, comparison_result
from gswarm_tui.common.errors import UserError, nearest, quote
from gswarm_tui.common.quantities import plural
from gswarm_tui.plotting import style
from gswarm_tui.plotting.figure import WIDTH, figure_bytes

_PANEL, _MARGINS = 1.5, 0.7
_NUMBERS = ("DOUBLE", "BIGINT", "INTEGER")
_DATES: Any = dates


Point = tuple[datetime, int, float]
"""The start of a run in UTC, its GPUs, and the value of a figure."""


def series_of(runs: Sequence[ComparedRun], names: Sequence[str]) -> dict[str, list[Point]]:
    """Return the values of columns of a comparison's data, or of marks, by name. Raises UserError."""
    result = comparison_result(runs)
    numeric = [name for name, kind in zip(result.names, result.types, strict=True) if kind in _NUMBERS]
    rows, found = result.dicts(), {}
    for name in names:
        column = name if name in numeric else f"mark_{name}"
        if column not in numeric:
            known = [each.removeprefix("mark_") for each in numeric]
            hint = nearest(name, known) or f"; choose from {', '.join(known)}"
            raise UserError(f"--over-time: no run has the figure {quote(name)}{hint}.")
        found[name] = sorted(
            (row["started_at"].replace(tzinfo=UTC), row["gpus"], row[column])
            for row in rows
            if row[column] is not None
        )
    return found


def draw_over_time(series: Mapping[str, Sequence[Point]], zone: tzinfo | None, kind: str) -> bytes:
    """Return a plot as a file of a kind: pdf, png or svg. Each number of GPUs has a line and a colour."""
    sizes = sorted({gpus for points in series.values() for _, gpus, _ in points})
    with style.plot_style():
        figure = Figure(figsize=(WIDTH, _PANEL * len(series) + _MARGINS), layout="constrained")
        panels: Any = figure.subplots(len(series), squeeze=False, sharex=True)[:, 0]
        for (name, values), axes in zip(series.items(), panels, strict=True):
            for at, size in enumerate(sizes):
                points = [(start, value) for start, gpus, value in values if gpus == size]
                colour = style.VALUES[at % len(style.VALUES)]
                if points:
                    axes.plot(
                        *zip(*points, strict=True), "o-", ms=2.5, color=colour, label=plural(size, "GPU")
                    )
            axes.set_title(name, loc="left", fontsize=style.USUAL)
            axes.grid(axis="y")
        zone = zone or datetime.now().astimezone().tzinfo
        locator = _DATES.AutoDateLocator(zone)
        panels[-1].xaxis.set_major_locator(locator)
        panels[-1].xaxis.set_major_formatter(_DATES.ConciseDateFormatter(locator, zone))
        if len(sizes) > 1:
            panels[0].legend(frameon=False, fontsize=style.SMALL)
        return figure_bytes(figure, kind, ", ".join(series))
