"""A report, made of a recording: asks, draws and puts the page together."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, tzinfo

from gswarm_tui.analysis.spans import Span
from gswarm_tui.plotting.choosing import Choice, metric_named
from gswarm_tui.plotting.figure import reading
from gswarm_tui.plotting.happenings import value_names
from gswarm_tui.plotting.material import Material, gather
from gswarm_tui.reporting import vector
from gswarm_tui.reporting.facts import facts
from gswarm_tui.reporting.page import Plot, Report
from gswarm_tui.store.querying.results import QuerySource

MOST_BINS = 600
"""Enough for the width of a page, and few enough to send on."""
MOST_VALUES = 4
_MAPS = ("util",)
_CURVES = ("util", "power", "mem", "temp", "nvtx", "pcierx")
_HOSTS = ("cpu", "hostmem", "netin")


def make(
    source: QuerySource, span: Span, made_at: datetime, zone: tzinfo | None, tool_version: str
) -> Report:
    """The report of a span.

    Raises:
        UserError: it holds nothing to report.
        StoreError: the file can't be read.
    """
    choices = [Choice(*metric_named(name), heatmap=name in _MAPS, curve=True) for name in (*_CURVES, *_HOSTS)]
    material = gather(source, span, choices, all_of_them=False, most_bins=MOST_BINS)
    return Report(
        span=span,
        facts=facts(source, span),
        plots=_plots(material, zone),
        path=source.path,
        running=material.running,
        made_at=made_at,
        zone=zone,
        tool_version=tool_version,
    )


def _plots(material: Material, zone: tzinfo | None) -> list[Plot]:
    util = _only(material, "util")
    rest = _only(replace(material, others=(), troubles=()), *_CURVES[1:])
    hosts = _only(replace(material, others=(), troubles=()), *_HOSTS)
    values = tuple(value_names(material.marks)[:MOST_VALUES])
    marked = replace(_only(replace(material, others=(), troubles=())), values=values)
    above = " Above: other sessions, marks, and what happened."
    told = bool(material.others or material.marks or material.troubles)
    captions = (
        (util, "util", "GPU utilisation." + above * told),
        (rest, "gpus", "What the GPUs drew, held and moved."),
        (hosts, "nodes", "The nodes' own CPUs, memory and network."),
        (marked, "marks", "Values that the job gave with its marks."),
    )
    return [
        Plot(vector.inline(part, zone, name, caption), f"{caption} {reading(part)}".strip())
        for part, name, caption in captions
        if part.grids or part.values
    ]


def _only(material: Material, *shorts: str) -> Material:
    kept = [
        (choice, grid)
        for choice, grid in zip(material.choices, material.grids, strict=True)
        if choice.metric.short in shorts
    ]
    return replace(
        material, choices=tuple(choice for choice, _ in kept), grids=tuple(grid for _, grid in kept)
    )
