"""Report builder: loads the data, draws the plots as inline SVG and assembles the page."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, tzinfo
from html import escape

from markupsafe import Markup

from gswarm_tui.analysis.periods import Period
from gswarm_tui.plotting.annotations import value_names
from gswarm_tui.plotting.figure import draw, reading_hint
from gswarm_tui.plotting.metric_choice import MetricChoice, metric_named
from gswarm_tui.plotting.plot_data import NothingMeasuredError, PlotData, load_plot_data
from gswarm_tui.reporting.page import Report
from gswarm_tui.reporting.report_data import load_report_data
from gswarm_tui.store.querying.results import QuerySource

MAX_BINS = 600
"""Bins of a plot: enough for the width of a page, few enough for a small file."""
MOST_VALUES = 4
_MAPS = ("util",)
_CURVES = ("util", "power", "mem", "temp", "nvtx", "pcierx")
_HOSTS = ("cpu", "hostmem", "netin")


def build_report(
    source: QuerySource, period: Period, made_at: datetime, zone: tzinfo | None, tool_version: str
) -> Report:
    """Build the report of a period.

    Raises:
        UserError: the period has neither samples nor profiles.
        StoreError: the file can't be read.
    """
    choices = [
        MetricChoice(*metric_named(name), heatmap=name in _MAPS, curve=True) for name in (*_CURVES, *_HOSTS)
    ]
    facts = load_report_data(source, period)
    try:
        data = load_plot_data(source, period, choices, all_of_them=False, most_bins=MAX_BINS)
    except NothingMeasuredError:
        if not facts.profiled:
            raise
        plots = []
    else:
        plots = _plots(data, zone)
    running = source.running and period.ended_at is None
    return Report(period, facts, plots, source.path, running, made_at, zone, tool_version)


def _plots(data: PlotData, zone: tzinfo | None) -> list[tuple[Markup, str]]:
    util = _only(data, "util")
    bare = replace(data, incidents=())
    rest = _only(bare, *_CURVES[1:])
    hosts = _only(bare, *_HOSTS)
    values = tuple(value_names(data.marks)[:MOST_VALUES])
    marked = replace(_only(bare), values=values)
    above = " Above: marks, warnings (orange) and errors (red)."
    annotated = bool(data.marks or data.incidents)
    captions = (
        (util, "GPU utilisation." + above * annotated),
        (rest, "Power, memory and traffic of the GPUs."),
        (hosts, "CPUs, memory and network of the nodes."),
        (marked, "Values of the job's marks."),
    )
    return [
        (_inlined(draw(part, zone, "svg", inline=True), caption), f"{caption} {reading_hint(part)}".strip())
        for part, caption in captions
        if part.grids or part.values
    ]


def _only(data: PlotData, *shorts: str) -> PlotData:
    kept = [
        (choice, grid)
        for choice, grid in zip(data.choices, data.grids, strict=True)
        if choice.metric.short in shorts
    ]
    return replace(data, choices=tuple(choice for choice, _ in kept), grids=tuple(grid for _, grid in kept))


def _inlined(drawn: bytes, label: str) -> Markup:
    """Return an SVG file as an element of the page, without what only files need."""
    svg = drawn.decode()
    needless = r'<(metadata|title|style)\b.*?</\1>| xmlns(?::xlink)?="[^"]*"'
    svg = re.sub(needless, "", svg[svg.index("<svg") :], flags=re.DOTALL)
    # Hundredths of a point suffice, and halve the page.
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)
    # Matplotlib escapes the texts that it draws.
    return Markup(svg.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1))  # noqa: S704
