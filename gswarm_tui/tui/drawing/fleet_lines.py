"""Lines around the heatmap: header, totals, legend, heads, sessions, events, GPU under the cursor. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo

import numpy as np

from gswarm_agent.frame import ERROR, WARNING, GpuFacts, gpu_label
from gswarm_agent.metrics import GPU_BY_NAME, GPU_COLUMNS, SWITCHED_OFF
from gswarm_tui.common import quantities
from gswarm_tui.common.units import shown_unit
from gswarm_tui.fleet.event_groups import EventGroup
from gswarm_tui.fleet.node import NodeState, Standing
from gswarm_tui.fleet.program import program
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.fleet.throttling import reason_names
from gswarm_tui.fleet.totals import Totals
from gswarm_tui.insight.ledger import CAUSES
from gswarm_tui.tui.drawing import numbers
from gswarm_tui.tui.drawing.cells import CAUSE_SIGNS
from gswarm_tui.tui.drawing.heatmap_data import HeatmapData
from gswarm_tui.tui.drawing.layout import HOST_WIDTHS, MEAN_WIDTH, Layout, Zoom
from gswarm_tui.tui.drawing.node_status import REASON_SHORTEST, ROLES, full_status
from gswarm_tui.tui.drawing.ramp import BLOCK_OF, BUCKETS, is_logarithmic, ramp_of
from gswarm_tui.tui.drawing.spans import Line, Span, measure, spread
from gswarm_tui.tui.drawing.text import clean, clip, width, wrap

NAME = "gswarm"
NAME_SHORTEST = 12
"""Cells kept for the job's name before the recorder's state takes the rest."""
COMMAND_SHORTEST, WARNING_SHORTEST = 16, 10
"""Cells of a command or warning on the line of the GPU under the cursor; a warning is cut, not left out."""
_PREFIXES = {"link_lost": "lost: ", "unreachable": "unreachable: "}


def header_line(job: str, fleet: Fleet, simulated: bool, state: list[Span], cells: int) -> Line:
    """Return the header: job, nodes, "SIMULATED", and the recording's ``state`` (``recording_state``).

    Later spans of the state are left out where they don't fit; the first two always stay.
    """
    left = [Span(f" {NAME}", "accent"), Span("  ")]
    if simulated:
        left += [Span(" SIMULATED ", "chip"), Span("  ")]
    while len(state) > 2 and measure(state) > cells - measure(left) - NAME_SHORTEST:
        state = state[:-1]
    while len(state) > 2 and not any(map(str.isalnum, state[-1].text)):
        state = state[:-1]
    room = cells - measure(left) - measure(state) - 3
    known = sum(node.gpu_count for node in fleet.nodes.values())
    gpus = f"{quantities.plural(len(fleet.nodes), 'node')} · {quantities.plural(known, 'GPU')}"
    words = f"{job} · {gpus}" if job and len(job) + len(gpus) + 3 <= room else job or gpus
    left.append(Span(clip(words, max(room, 0)), "text"))
    fits = measure(left) + measure(state) + 2 <= cells
    return spread(left, [*state, Span(" ")], cells) if fits else [*left[:2], *state]


def totals_line(sums: Totals, interval_s: float, cells: int, pace: str = "") -> Line:
    """Return the fleet's totals, the most important first; the last are left out where they don't fit.

    ``pace`` is the text of the step time, if it is known.
    """
    all_up = sums.nodes_up == sums.nodes
    lowest = f"{sums.lowest_util[0]}:{sums.lowest_util[1]}" if sums.lowest_util and sums.gpus > 1 else ""
    late = sums.lag_ms >= 100 * interval_s
    parts: list[list[Span]] = [
        [Span("nodes "), Span(f"{sums.nodes_up:,}/{sums.nodes:,}", "title" if all_up else "error")],
        [Span("busy "), Span(f"{sums.busy:,}/{sums.gpus:,}", "title")],
        [Span("util "), Span(quantities.percent(sums.mean_util), "title")],
        [Span(quantities.watts(sums.power_w), "title")],
        [Span(quantities.energy(sums.energy_j), "title")],
        [Span("mem "), Span(quantities.used_of(sums.memory_used_mib, sums.memory_total_mib), "title")],
        [Span(pace, "title")] if pace else [],
        [Span("lowest util "), Span(clean(lowest), "title")] if lowest else [],
        [Span(f"every {interval_s:g} s")],
        [Span("lag "), Span(f"{sums.lag_ms:.0f} ms", "warning" if late else "title")],
    ]
    shown = [spans for spans in parts if spans]
    while sum(measure(spans) + 3 for spans in shown) > cells + 1:
        shown.pop()
    line = [Span(" ")]
    for spans in shown:
        line += [Span(s.text, "dim") if s.role == "text" else s for s in spans] + [Span("   ")]
    return line[:-1]


def sessions_line(fleet: Fleet, now: float, cells: int, *, can_start: bool) -> list[Span]:
    """Return the running sessions with time and means, as many as fit."""
    running = fleet.sessions.running
    if not running:
        hint = [Span("   "), Span("s", "key", "app.start_session()"), Span(" starts one", "dim")]
        return [Span(" no session", "dim"), *(hint if can_start else [])]
    line = [Span(" sessions", "dim")]
    for number, session in enumerate(running):
        numbers = f" {quantities.elapsed(session.seconds(now))}  util {quantities.percent(session.mean_util)}"
        numbers += f"  {quantities.energy(session.energy_j)}"
        entry = [Span("  ● ", "good"), Span(clip(clean(session.name), 24), "title"), Span(numbers, "dim")]
        more = len(running) - number
        if number and measure(line) + measure(entry) > cells - 10:
            return [*line, Span(f"  +{more} more", "dim")]
        line += entry
    return line


def event_line(group: EventGroup, timezone: tzinfo | None) -> list[Span]:
    """Return events as a line: time in the zone (None is the machine's own), node and GPU, message."""
    event = group.first
    at = datetime.fromtimestamp(group.at, UTC).astimezone(timezone)
    role = {ERROR: "error", WARNING: "warning"}.get(event.severity, "text")
    sign = {ERROR: "╳ ", WARNING: "▲ "}.get(event.severity, "")
    who = (group.node or "") + ("" if group.gpu is None else f":{gpu_label(group.gpu)}")
    words = _PREFIXES.get(event.kind, "") + group.message.removeprefix(f"{who} · ")
    if event.node is None:
        words = f"{event.kind.replace('_', ' ')}: {words}"
    subject = Span(f"{clean(who)} " if who else "", "title")
    return [Span(f" {at:%H:%M:%S} ", "dim"), Span(sign, role), subject, Span(clean(words), role)]


def cursor_lines(node: NodeState | None, gpu: int | None, now: float, cells: int, most: int) -> list[Line]:
    """Return the state of the node and GPU under the cursor; a problem takes up to ``most`` lines."""
    if node is None:
        return [[Span(" No node or GPU matches the filter; / changes it, esc clears it.", "warning")]]
    standing = node.standing(now)
    index = f":{node.facts[gpu].label}" if gpu is not None and gpu < len(node.facts) else ""
    name = [Span(f" {clean(node.name)}{index}", "title"), Span("  ")]
    if standing is not Standing.LIVE and standing is not Standing.STALE:
        indent = measure(name)
        room = max(REASON_SHORTEST, cells - indent - 1)
        lines = wrap(full_status(node, standing, now), room)
        if len(lines) > most:
            lines = [full_status(node, standing, now, room)]
        starts = [name, *[[Span(" " * indent)]] * (len(lines) - 1)]
        return [[*start, Span(line, ROLES[standing])] for start, line in zip(starts, lines, strict=True)]
    if standing is Standing.STALE:
        name += [Span(full_status(node, standing, now), "warning"), Span("  ")]
    if gpu is None or gpu >= len(node.gpus):
        reason = node.hello.capabilities.get("gpu", "no GPUs") if node.hello is not None else ""
        return [[*name, Span(clean(reason), "dim")]]
    return [_fitted(name, _gpu_parts(node, gpu, max(48, cells // 3)), cells)]


def _fitted(start: list[Span], parts: list[list[Span]], cells: int) -> Line:
    line = list(start)
    for part in parts:
        room = cells - 1 - measure(line)
        cut = part[0].role == "warning" and room >= WARNING_SHORTEST
        shown = [Span(clip(part[0].text, room), "warning")] if cut else part
        if measure(shown) <= room:
            line += [*shown, Span("  ")]
    return line[:-1]


def mig_words(fact: GpuFacts) -> str:
    """Return profile and GPU of a MIG instance; of a GPU whether it is divided."""
    if fact.parent_index is not None:
        return f"MIG {clean(fact.mig_profile or 'instance')} of GPU {fact.parent_index}"
    return "MIG on" if fact.mig else "MIG off"


def _gpu_parts(node: NodeState, gpu: int, process_cells: int) -> list[list[Span]]:
    row, fact = node.gpus[gpu], node.facts[gpu]
    value = {name: float(row[column]) for column, name in enumerate(GPU_COLUMNS)}
    if not np.isfinite(row).any():
        return [[Span("╳ GPU does not respond", "error")]]
    parts = []
    if not node.mine[gpu]:
        parts.append([Span("not in your job", "warning")])
    limit = f"/{fact.power_limit_w:.0f} W" if fact.power_limit_w else " W"
    power = f"{numbers.cell(value['power_w'], GPU_BY_NAME['power_w'])}{limit}"
    memory = [Span("mem ", "dim"), Span(quantities.used_of(value["mem_used_mib"], fact.memory_total_mib))]
    if fact.parent_index is not None:
        active = quantities.percent(value["sm_active_pct"])
        parts += [[Span(mig_words(fact))], [Span("SM ", "dim"), Span(active)], memory]
    else:
        util = [Span("util ", "dim"), Span(quantities.percent(value["util_pct"]))]
        parts += [util, memory, [Span(power)], [Span(quantities.celsius(value["temp_c"]))]]
    if words := reason_names(node.clock_reasons[gpu]):
        parts.append([Span(f"▲ {words}", "warning")])
    if (rank := node.ranks.get(gpu)) is not None:
        parts.append([Span("rank ", "dim"), Span(f"{rank}")])
    process = next((p for p in node.processes if p.gpu == gpu), None)
    if process is not None:
        who = clean(f" ({process.pid}, {process.user or '?'})")
        room = max(COMMAND_SHORTEST, process_cells - width(who))
        command = clip(clean(program(process.command or "?")), room)
        parts.append([Span(command + who, "dim")])
    if fact.parent_index is None:
        parts.append([Span(numbers.quantity(value["sm_clock_mhz"], GPU_BY_NAME["sm_clock_mhz"]))])
    nvlink = (value["nvlink_tx_mb_s"], value["nvlink_rx_mb_s"])
    if np.isfinite(nvlink).any():
        parts.append([Span("NVLink ", "dim"), Span(" / ".join(map(quantities.rate, nvlink)))])
    parts.append([Span(clean(fact.name), "dim")])
    return parts


HOST_HEADS = {"cpu": "cpu", "mem": "mem", "net": "GB/s in/out", "iowait": "iowait"}


def legend_line(picture: HeatmapData, zoom: Zoom, state: str, cells: int) -> Line:
    """Return the metric, its colour scale with both ends, and the filter and order in use (``state``).

    A metric that is switched off has no scale. Where not all fits, the end of the scale is left out; only
    without a scale the state is cut.
    """
    metric = picture.metric
    unit = shown_unit(metric).name
    left = [Span(f" {numbers.label(metric)}", "accent"), Span(f" {unit}  " if unit else "  ", "dim")]
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
