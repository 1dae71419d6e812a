"""Legend and column headings of the heatmap. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from gswarm_agent.metrics import COUNTERS, HOST_METRICS, SWITCHED_OFF, Metric
from gswarm_tui.common import quantities
from gswarm_tui.common.units import shown_unit
from gswarm_tui.insight.ledger import CAUSES
from gswarm_tui.tui.drawing import numbers
from gswarm_tui.tui.drawing.cells import CAUSE_SIGNS
from gswarm_tui.tui.drawing.heatmap_data import HeatmapData
from gswarm_tui.tui.drawing.layout import HOST_WIDTHS, MEAN_WIDTH, Layout, Zoom
from gswarm_tui.tui.drawing.ramp import BLOCK_OF, BUCKETS, is_logarithmic, ramp_of
from gswarm_tui.tui.drawing.spans import Line, Span, measure, spread
from gswarm_tui.tui.drawing.text import clip, width

HOST_HEADS = {"cpu": "cpu", "mem": "mem", "net": "GB/s in/out", "iowait": "iowait"}


def host_metrics(groups: Collection[str]) -> list[Metric]:
    """Return the host metrics to choose from: hardware counters only while their group is on."""
    return [metric for metric in HOST_METRICS if metric.group != COUNTERS or COUNTERS in groups]


def legend_line(picture: HeatmapData, zoom: Zoom, state: str, cells: int) -> Line:
    """Return the metric, its colour scale with both ends, and the filter and order in use (``state``).

    A metric that is switched off has no scale. Where not all fits, the end of the scale is left out; only
    without a scale the state is cut.
    """
    metric = picture.metric
    unit = shown_unit(metric).name
    left = [Span(f" {label(metric)}", "accent"), Span(f" {unit}  " if unit else "  ", "dim")]
    if picture.switched_off:
        left.append(Span(SWITCHED_OFF, "warning"))
    elif metric.unit == "bits":
        for step, word in ((0, " ok "), (BUCKETS // 2, " cap "), (BUCKETS - 1, " slow ")):
            left.append(Span(word, f"heat{ramp_of(metric)}{step}"))
        left.append(Span("  cap: power limit, slow: heat or power brake", "dim"))
    else:
        low, high = ends(picture)
        sign, kind = (BLOCK_OF, "ink") if zoom in (Zoom.BLOCKS, Zoom.PLAIN) else (" " * BUCKETS, "heat")
        ramp = [Span(sign[step], f"{kind}{ramp_of(metric)}{step}") for step in range(BUCKETS)]
        left += [Span(f"{low} ", "dim"), *ramp, Span(f" {high}", "dim")]
        if is_logarithmic(metric):
            left.append(Span(", logarithmic", "dim"))
    if not picture.switched_off:
        left.append(Span(f"   {quantities.DASH} unmeasured", "dim"))
    while len(left) > 1 and state and measure(left) + width(state) + 3 > cells:
        left.pop()
    words = clip(state, max(0, cells - measure(left) - 3))
    return spread(left, [Span(f"{words} ", "accent")] if words else [], cells)


def causes_line(causes: Mapping[str, bytes], cells: int, *, past: bool) -> Line:
    """Return what the letters of GPUs mean, with the number of GPUs; the most frequent ones come first."""
    line = [Span(" cause of time", "accent"), Span(" now", "dim")]
    if not causes:
        why = "is kept for no past time" if past else "isn't known before the rules have looked"
        return [*line[:1], Span(f" {why}", "warning")]
    for cause, count in Counter(b"".join(causes.values())).most_common():
        sign, shade = CAUSE_SIGNS[cause]
        words = f" {CAUSES[cause] if cause < len(CAUSES) else 'none'} {count:,}"
        part = [Span("  "), Span(f" {sign} ", f"heat{shade}"), Span(words)]
        line += part if measure(line) + measure(part) <= cells else []
    return line


def label(metric: Metric) -> str:
    """Return a metric's title."""
    return f"{metric.label} since start" if metric.name == "energy_mj" else metric.label


def meaning(metric: Metric) -> str:
    """Return what a metric's numbers mean on the screen, where energy and bits differ from the catalogue."""
    if metric.name == "energy_mj":
        return "Energy used since the recording began"
    return metric.meaning.partition(":")[0] if metric.unit == "bits" else metric.meaning


def ends(picture: HeatmapData) -> tuple[str, str]:
    """Return the lower and the upper end of the scale, in the unit shown."""
    metric = picture.metric
    if metric.unit == "errors":
        return "1", numbers.digits(picture.top)
    if is_logarithmic(metric):
        return "0.001", numbers.digits(picture.top / 1000)
    if metric.unit == "P":
        return "P0", "P15"
    high = numbers.cell(picture.top, metric)
    return "0", high if picture.same_top else f"each GPU's limit, up to {high}"


def heads_line(picture: HeatmapData, layout: Layout, indexes: tuple[str, ...], span_label: str) -> Line:
    """Return the headings over each column of nodes: the GPUs' ``indexes``, the sparklines' time range."""
    block = ""
    if layout.name:
        room = layout.name + layout.sign
        block += f"{'node' if room > len('node') else '':<{room}}"
    if layout.rank:
        block += f"{'rank':>{layout.rank - 1}} "
    if picture.of_host:
        block += f"{picture.metric.short[: layout.cell]:>{max(layout.cell - 1, 1)}} "
    elif layout.cell > 1:
        block += "".join(f"{index[1 - layout.cell :]:>{layout.cell - 1}} " for index in indexes)
    else:
        block += "".join(index[-1] for index in indexes)
    if layout.mean:
        block += f"{'mean':>{MEAN_WIDTH}}"
    if layout.spark:
        block += f"  {span_label:<{layout.spark}} "
    if layout.zoom is not Zoom.ROWS:
        heads = (f"{block:<{layout.block}}" * min(layout.columns, layout.nodes)).rstrip()
        return [Span(" " * layout.margin), Span(heads, "dim")]
    block += "".join(f"{HOST_HEADS[name]:>{HOST_WIDTHS[name]}}" for name in layout.hosts)
    return [Span(" " * layout.margin), Span(block, "dim")]
