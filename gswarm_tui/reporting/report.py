"""Report builder: loads the data, draws the plots as inline SVG and assembles the page."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, tzinfo
from html import escape

from markupsafe import Markup

from gswarm_tui.analysis.periods import Period
from gswarm_tui.plotting import style
from gswarm_tui.plotting.annotations import value_names
from gswarm_tui.plotting.figure import draw, reading_hint
from gswarm_tui.plotting.metric_choice import MetricChoice, metric_named
from gswarm_tui.plotting.plot_data import NothingMeasuredError, PlotData, load_plot_data
from gswarm_tui.plotting.trial_plot import draw_trial
from gswarm_tui.reporting.page import Report
from gswarm_tui.reporting.report_data import load_report_data
from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.trials.results import TrialResults

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
    return Report(
        period=period,
        facts=facts,
        plots=plots,
        trial_plot=_trial_plot(facts.trial) if isinstance(facts.trial, TrialResults) else None,
        path=source.path,
        running=source.running and period.ended_at is None,
        made_at=made_at,
        zone=zone,
        tool_version=tool_version,
    )


def _plots(data: PlotData, zone: tzinfo | None) -> list[tuple[Markup, str]]:
    util = _only(data, "util")
    bare = replace(data, others=(), incidents=())
    rest = _only(bare, *_CURVES[1:])
    hosts = _only(bare, *_HOSTS)
    values = tuple(value_names(data.marks)[:MOST_VALUES])
    marked = replace(_only(bare), values=values)
    above = " Above: other sessions, marks, warnings (orange) and errors (red)."
    annotated = bool(data.others or data.marks or data.incidents)
    captions = (
        (util, "util", "GPU utilisation." + above * annotated),
        (rest, "gpus", "Power, memory and traffic of the GPUs."),
        (hosts, "nodes", "CPUs, memory and network of the nodes."),
        (marked, "marks", "Values of the job's marks."),
    )
    return [
        (inline(part, zone, name, caption), f"{caption} {reading_hint(part)}".strip())
        for part, name, caption in captions
        if part.grids or part.values
    ]


def _trial_plot(results: TrialResults) -> tuple[Markup, str]:
    caption = "Speed-up, efficiency, cost and balance of the trial's placements."
    drawn = draw_trial(results, "svg", inline=True).decode()
    return _fitted(drawn, "trial", caption), caption


def _only(data: PlotData, *shorts: str) -> PlotData:
    kept = [
        (choice, grid)
        for choice, grid in zip(data.choices, data.grids, strict=True)
        if choice.metric.short in shorts
    ]
    return replace(data, choices=tuple(choice for choice, _ in kept), grids=tuple(grid for _, grid in kept))


ROLES = {
    "#ffffff": "paper",
    style.INK: "ink",
    style.DIM: "dim",
    style.FAINT: "faint",
    style.GRID: "grid",
    style.LINE: "line",
    style.INNER: "inner",
    style.OUTER: "outer",
    style.GAP: "gap",
    style.GAP_LINES: "gap-lines",
    style.NO_DATA: "no-data",
    style.NO_DATA_LINES: "no-data-lines",
    **{colour: f"value-{number}" for number, colour in enumerate(style.VALUES[1:], 2)},
    style.SEVERITY["error"]: "error",
    style.SEVERITY["warning"]: "warning",
}
"""CSS variables for the colours of plots, which the dark theme redefines."""


def inline(data: PlotData, zone: tzinfo | None, name: str, label: str) -> Markup:
    """Return a plot as an inline SVG element; ``name`` must be unique on the page."""
    drawn = draw(data, zone, "svg", inline=True).decode()
    return _fitted(drawn, name, label)


def _fitted(drawn: str, name: str, label: str) -> Markup:
    svg = drawn[drawn.index("<svg") :]
    svg = re.sub(r"<(metadata|title|style)\b.*?</\1>", "", svg, flags=re.DOTALL)
    opening, _, body = svg.partition(">")
    box = opening.partition('viewBox="')[2].partition('"')[0]
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', body))

    def fit(found: re.Match[str]) -> str:
        element = re.sub(
            r' id="([^"]*)"', lambda it: f' id="{name}-{it[1]}"' if it[1] in used else "", found[0]
        )
        element = element.replace("url(#", f"url(#{name}-").replace("xlink:href=", "href=")
        element = element.replace('href="#', f'href="#{name}-')
        if " d=" in element:
            element = re.sub(r"(\d\.\d\d)\d+", r"\1", element)
        element = re.sub(r"font-family: [^;\"]*", "font-family: var(--plot)", element)
        element = re.sub(r'fill="(#[0-9a-f]{6})"', r'style="fill: \1"', element)
        return re.sub(r"#[0-9a-f]{6}\b", lambda it: _variable(it[0]), element)

    # Change tags only, never text.
    body = re.sub(r"<[^>]+>", fit, body)
    # Matplotlib escapes the texts that it draws.
    return Markup(f'<svg viewBox="{box}" role="img" aria-label="{escape(label)}">{body}')  # noqa: S704


def _variable(colour: str) -> str:
    return f"var(--{ROLES[colour]})" if colour in ROLES else colour
