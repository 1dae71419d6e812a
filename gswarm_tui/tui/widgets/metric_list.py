"""All metrics of a GPU as lines: name, value with unit, bar on its fixed scale and meaning."""

from __future__ import annotations

import math

import numpy as np

from gswarm_agent.metrics import GPU_METRICS, REASON_NAMES, Metric
from gswarm_tui.fleet.node import NodeState, Standing
from gswarm_tui.fleet.throttling import HARMFUL, reason_names
from gswarm_tui.tui.format import DASH, energy, quantity
from gswarm_tui.tui.ramp import bucket, fractions, top_of
from gswarm_tui.tui.text import clip, pad, wrap
from gswarm_tui.tui.widgets.bar import Span
from gswarm_tui.tui.widgets.curve import bar
from gswarm_tui.tui.widgets.lines import Spans, ink

LABEL_WIDTH = 17
VALUE_WIDTH = 10
BAR_WIDTH = 14
NARROW = 1 + LABEL_WIDTH + 1 + VALUE_WIDTH + 2 + BAR_WIDTH
"""Cells of the list without meanings."""
MEANING_LEAST = 30


def metric_lines(node: NodeState, row: int, cells: int, now: float) -> list[Spans]:
    """One line a metric; what wasn't measured says why instead of what it means."""
    if row >= len(node.facts):
        return []
    old = node.standing(now) is not Standing.LIVE
    room = cells - NARROW - 2
    lines: list[Spans] = []
    for metric, value in zip(GPU_METRICS, node.gpus[row].tolist(), strict=True):
        label = Span(f" {metric.label:<{LABEL_WIDTH}} ", "dim")
        if metric.unit == "bits":
            words, role = in_words(value)
            for part in wrap(words, max(12, cells - LABEL_WIDTH - 3)):
                lines.append((label, Span(part, "dim" if old else role)))
                label = Span(" " * (LABEL_WIDTH + 2))
            continue
        text = energy(value / 1000) if metric.unit == "mJ" else quantity(value, metric)
        missing = text == DASH
        spans = [
            label,
            Span(pad(text, VALUE_WIDTH, right=True), "dim" if missing or old else "text"),
            Span("  "),
        ]
        spans.append(_bar(metric, value, top_of(metric, node.facts[row])))
        if room >= MEANING_LEAST:
            words = why_missing(node, row, metric) if missing else metric.meaning
            spans.append(Span("  " + clip(words, room), "warning" if missing else "dim"))
        lines.append(tuple(spans))
    return lines


def _bar(metric: Metric, value: float, top: float | None) -> Span:
    """A bar where the scale has an end; performance states count down from the fastest and have none."""
    if top is None or metric.unit == "P" or math.isnan(value):
        return Span(" " * BAR_WIDTH)
    level = float(fractions(metric, np.array([value]), top)[0])
    return Span(bar(level, BAR_WIDTH), ink(bucket(level)))


def in_words(bits: float) -> tuple[str, str]:
    """Clock reasons in words, and the role they are written in."""
    if math.isnan(bits):
        return DASH, "dim"
    held = reason_names(int(bits))
    if held:
        return held, "warning" if int(bits) & HARMFUL else "text"
    others = ", ".join(name for bit, name in REASON_NAMES.items() if bit & int(bits))
    return others or "nothing holds them down", "text"


def why_missing(node: NodeState, row: int, metric: Metric) -> str:
    """The reason that a node gives for a GPU's metric, or what is likely."""
    if node.hello is None:
        return "the node has not introduced itself"
    known = node.hello.capabilities
    index = node.facts[row].index
    for name in (f"gpu{index}.{metric.name}", metric.name, f"gpu{index}", "gpu"):
        if name in known:
            return known[name]
    return "not in the newest frame"
