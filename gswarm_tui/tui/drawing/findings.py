"""Findings as lines: the header's line, an entry of the list, and the curves and peers of a page. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, tzinfo

import numpy as np

from gswarm_agent.metrics import GPU_BY_NAME, GPU_COLUMNS, HOST_BY_NAME, HOST_COLUMNS
from gswarm_tui.common.quantities import plural
from gswarm_tui.common.units import nice_ceiling
from gswarm_tui.fleet.findings import FAULT, NOTE, WASTE, Finding
from gswarm_tui.fleet.history import Floats
from gswarm_tui.fleet.node import NodeState
from gswarm_tui.fleet.problems import named_rows
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.insight.signals import GPU_SIGNALS, HOST_SIGNALS
from gswarm_tui.tui.drawing.numbers import cell, quantity
from gswarm_tui.tui.drawing.plot import PlotSeries, curve_width, panel, window
from gswarm_tui.tui.drawing.ramp import BLOCK_OF, buckets, ramp_of, top_of
from gswarm_tui.tui.drawing.spans import CURSOR_MARK, Line, Span, Spans, measure
from gswarm_tui.tui.drawing.text import clean, clip, width, wrap
from gswarm_tui.tui.drawing.trends import Trends

SIGNS = {FAULT: ("╳", "error"), WASTE: ("▲", "warning"), NOTE: ("·", "accent")}
"""Sign and role of each severity; those of events, but a note has no warning's colour."""
INDENT = 13
"""Cells before the sentence of a finding in the list: cursor, sign, time."""


def first_line(findings: Sequence[Finding], cells: int) -> Line:
    """Return the first finding in a line: who, signal, how long and cost; then what else fits, in order."""
    finding = findings[0]
    sign, role = SIGNS[finding.severity]
    others = f"+{len(findings) - 1}" if len(findings) > 1 else ""
    end = [Span(f"  {others} " if others else "  ", "dim"), Span("!", "key"), Span(" why ", "dim")]
    room = cells - measure(end) - 3
    parts = clean(finding.sentence).split(" · ")
    signal = next((at for at, part in enumerate(parts) if at and not part.startswith("rank ")), 0)
    cost = [at for at, part in enumerate(parts) if part.startswith("≈")]
    first = dict.fromkeys((0, signal, *cost))
    if width(" · ".join(parts[at] for at in first)) > room:
        parts[signal] = parts[signal].partition(", ")[0]
    shown = [0]
    for at in dict.fromkeys((*first, *range(len(parts)))):
        more_shown = sorted({*shown, at})
        shown = more_shown if width(" · ".join(parts[each] for each in more_shown)) <= room else shown
    who, *more = (parts[at] for at in shown)
    words = clip("".join(f" · {part}" for part in more), room - width(who))
    line = [Span(f" {sign} ", role), Span(clip(who, room), "title"), Span(words)]
    click = "app.findings()"
    line = [span._replace(click=click) for span in (*line, *end)]
    return [*line[:3], Span(" " * (cells - measure(line)), "text"), *line[3:]]


def entry_lines(finding: Finding, cells: int, zone: tzinfo | None, *, chosen: bool) -> list[Spans]:
    """Return a finding of the list in full; one that ended or was dismissed is dim."""
    sign, role = SIGNS[finding.severity]
    old = "dismissed" if finding.dismissed else "" if finding.until is None else "ended"
    role, text = ("dim", "dim") if old else (role, "text")
    who, _, rest = clean(finding.sentence).partition(" · ")
    lines = wrap(f"{who} · {rest}" + (f" · {old}" if old else ""), max(20, cells - INDENT - 1))
    mark = Span(f"{CURSOR_MARK if chosen else ' '}", "accent")
    since = f" {datetime.fromtimestamp(finding.since, zone):%H:%M:%S} "
    first = (Span(who, "dim" if old else "title"), Span(lines[0].removeprefix(who), text))
    head: Spans = (mark, Span(f" {sign}", role), Span(since, "dim"), *first)
    return [head, *((Span(" " * INDENT), Span(line, text)) for line in lines[1:])]


def kind_name(kind: str) -> str:
    """Return a kind or a signal in words."""
    metric = GPU_BY_NAME.get(kind) or HOST_BY_NAME.get(kind)
    return metric.label if metric else clean(kind).replace("_", " ")


def strip_line(levels: Floats, culprits: Collection[int], cells: int, ramp: str) -> Spans:
    """Return one cell for each GPU or node, those of the finding in brackets; as many as fit around them."""
    room = max(8, (cells - 12) - 2 * len(culprits))
    begin = max(0, min(min(culprits, default=0) - room // 2, len(levels) - room))
    spans = [Span(" peers " + ("…" if begin else " "), "dim")]
    steps = buckets(levels)
    for at in range(begin, min(begin + room, len(levels))):
        cell = Span(BLOCK_OF[steps[at]], f"ink{ramp}{steps[at]}")
        spans += [Span("[", "title"), cell, Span("]", "title")] if at in culprits else [cell]
    return (*spans, Span("…" if begin + room < len(levels) else "", "dim"))


SPANS_S = (300.0, 420.0, 600.0, 900.0, 1800.0, 3600.0)
"""Time ranges, of which the first is plotted that holds the finding and the time around it."""
BEFORE_S, AFTER_S = 120.0, 60.0
"""Time that is plotted before a finding's start, and after its end."""
PLACES_MOST = 128
"""GPUs or nodes that are read: in a large fleet as many, evenly chosen, have the same median."""
ROLE_NODES = 4
"""Number of nodes from which the peers of a GPU are those in its slot, as the rules have it."""
_PLOTTED = {signal.name: signal for signal in (*GPU_SIGNALS, *HOST_SIGNALS) if not signal.bits}


def curve_lines(
    finding: Finding, fleet: Fleet, now: float, last: str, *, cells: int, room: int
) -> list[Spans]:
    """Return two curves on one scale in ``room`` lines, and the strip; ``last`` names the time ``now``.

    They show the first of the evidence of which the fleet keeps a history. Nothing is returned if there is
    none, or if the finding names no node of the fleet.
    """
    signal = next((_PLOTTED[one.metric] for one in finding.evidence if one.metric in _PLOTTED), None)
    of_host = signal in HOST_SIGNALS
    places, culprits = _places(finding, fleet, of_host=of_host)
    if signal is None or not culprits:
        return []
    metric = (HOST_BY_NAME if of_host else GPU_BY_NAME)[signal.columns[0]]
    columns = [(HOST_COLUMNS if of_host else GPU_COLUMNS).index(name) for name in signal.columns]
    end = now if finding.until is None else min(now, finding.until + AFTER_S)
    trends, bins = Trends(), curve_width(cells)
    trends.span_s = next((s for s in SPANS_S if s >= end - finding.since + BEFORE_S), SPANS_S[-1])

    def read(node: NodeState, row: int) -> list[Floats]:
        history = node.host_history if of_host else node.gpu_history
        return [trends.values(node, history, (at, row), bins, end) for at in columns]

    table = np.array([read(*place) for place in places]).sum(axis=1)
    node, row = places[0]
    facts = node.hello.host if of_host and node.hello is not None else node.facts[row]
    fixed = top_of(metric, facts) if metric.unit not in ("MB/s", "errors") else None
    top = fixed or nice_ceiling(float(np.nan_to_num(table).max()))
    is_peer = np.array([at not in culprits for at in range(len(places))])
    sides = [(finding.subject, _median(table[~is_peer]))]
    if is_peer.any():
        sides.append((f"median of {plural(int(is_peer.sum()), 'peer')}", _median(table[is_peer])))
    frame, lines = window(end, trends.span_s, bins), []
    mark = (finding.since - frame.start) / trends.span_s
    for at, (name, values) in enumerate(sides):
        latest = quantity(next(iter(values[np.isfinite(values)][::-1].tolist()), None), metric)
        title, levels = f"{name} · {kind_name(signal.name)}", np.clip(values / top, 0.0, 1.0)
        plot = PlotSeries(title, levels, cell(top, metric), latest, ramp=ramp_of(metric))
        axis = trends.span_s if at == len(sides) - 1 else None
        marks = [mark] if 0 <= mark < 1 else []
        ends = last if end == now else "after it"
        lines += panel(plot, cells, (room + at) // len(sides), axis, ends, marks=marks)
    if not is_peer.any():
        return lines
    newest = _median(table[:, -bins // 5 :].T)
    return [*lines, strip_line(newest / top, culprits, cells, ramp_of(metric))]


def _median(table: Floats) -> Floats:
    """Return the median of each column, NaN where nothing was measured."""
    known = np.isfinite(table).any(axis=0)
    out = np.full(table.shape[1], np.nan)
    out[known] = np.nanmedian(table[:, known], axis=0)
    return out


def _places(finding: Finding, fleet: Fleet, *, of_host: bool) -> tuple[list[tuple[NodeState, int]], set[int]]:
    """Return nodes with rows in order: whom a finding names, and their peers; and positions of the first."""
    entries = []
    for node in fleet.nodes.values():
        rows = [0] if of_host else [row for row, mine in enumerate(node.mine) if mine]
        named = named_rows(finding, node)
        is_named = [bool(named) if of_host else row in named for row in rows]
        entries += [(node, *one) for one in zip(rows, range(len(rows)), is_named, strict=True) if node.hello]
    if finding.gpu is not None and len(fleet.nodes) >= ROLE_NODES and not of_host:
        slots = {slot for _, _, slot, is_named in entries if is_named}
        entries = [one for one in entries if one[2] in slots]
    every = max(1, len(entries) // PLACES_MOST)
    all_named = sum(one[3] for one in entries) <= PLACES_MOST
    kept = [one for at, one in enumerate(entries) if at % every == 0 or (all_named and one[3])]
    return [one[:2] for one in kept], {at for at, one in enumerate(kept) if one[3]}
