"""Choice of the metrics in a plot by their names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gswarm_agent.metrics import COUNTER, GPU_METRICS, HOST_METRICS, Metric
from gswarm_tui.common.errors import UserError, nearest, quote


@dataclass(frozen=True)
class MetricChoice:
    """A metric of GPUs or (``host``) of nodes to draw as a heatmap, a curve, or both."""

    metric: Metric
    host: bool
    heatmap: bool
    curve: bool


_KNOWN = {m.short: (m, False) for m in GPU_METRICS} | {m.short: (m, True) for m in HOST_METRICS}
_FULL = {m.name: (m, False) for m in GPU_METRICS} | {m.name: (m, True) for m in HOST_METRICS}

DEFAULT_HEATMAPS = ("util",)
DEFAULT_CURVES = ("util", "power", "mem", "cpu")


def choose_metrics(
    both: Iterable[str] = (), heatmaps: Iterable[str] = (), curves: Iterable[str] = ()
) -> tuple[MetricChoice, ...]:
    """Return the metrics to draw, in the order named; without names, the defaults.

    Each text may hold several names separated by commas. Raises UserError.
    """
    named = [_names(words) for words in (both, heatmaps, curves)]
    if not any(named):
        named = [[], list(DEFAULT_HEATMAPS), list(DEFAULT_CURVES)]
    found = {name: metric_named(name) for names in named for name in names}
    as_heatmap = {found[name] for name in named[0] + named[1]}
    as_curve = {found[name] for name in named[0] + named[2]}
    return tuple(
        MetricChoice(*one, heatmap=one in as_heatmap, curve=one in as_curve)
        for one in dict.fromkeys(found.values())
    )


def metric_named(name: str) -> tuple[Metric, bool]:
    """Return the metric of a short or full name, and whether it is one of nodes. Raises UserError."""
    if found := _KNOWN.get(name) or _FULL.get(name):
        if found[0].unit == "bits":
            raise UserError(
                f"{name} is a set of reasons; draw the shares of time thrpower, thrtherm, thrbrake."
            )
        if found[0].kind == COUNTER:
            raise UserError(f"{name} is a counter, which plots don't draw; gswarm-tui sql has its growth.")
        return found
    hint = nearest(name, [*_KNOWN, *_FULL]) or f"; choose from {', '.join(_KNOWN)}"
    raise UserError(f"unknown metric {quote(name)}{hint}.")


def _names(words: Iterable[str]) -> list[str]:
    return [name for word in words for part in word.split(",") if (name := part.strip())]
