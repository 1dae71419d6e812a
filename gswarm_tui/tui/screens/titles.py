"""Title lines of the screens: name, status, hardware and link of a node or GPU."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from gswarm_agent.metrics import HOST_COLUMNS
from gswarm_tui.common.quantities import DASH, age, mebibytes, plural, used_of, watts
from gswarm_tui.fleet.health import gpu_health
from gswarm_tui.fleet.node import NodeState, Standing
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.tui.drawing.fleet_lines import mig_words
from gswarm_tui.tui.drawing.node_status import ROLES, short_status
from gswarm_tui.tui.drawing.spans import Line, Span, measure, spread, wrapped
from gswarm_tui.tui.drawing.text import clean, clip, width

Title = tuple[list[Span], str, list[Line]]
"""Title, model at its end (``title_line``), and the lines below."""
ERROR_SHORTEST = 12
"""Minimum cells of an error; a shorter one can't be understood."""
NAME_SHORTEST = 8
"""Minimum cells of a GPU's model; a shorter one is left out."""
MOST_LINES = 8
"""Lines that an error may take of its screen."""


def joined(parts: Iterable[str]) -> str:
    """Join facts; unknown ones are left out."""
    return " · ".join(part for part in parts if part)


def title_line(left: list[Span], fleet: Fleet, state: list[Span], cells: int, model: str = "") -> Line:
    """Return a title with the recorder's state and "SIMULATED" at the right.

    Where they don't fit, the ``model`` at the title's end is cut first, then the state is left out, then the
    end of the title; "SIMULATED" always stays. An error of the recorder is cut to the space.
    """
    simulated = any(n.hello is not None and n.hello.simulated for n in fleet.nodes.values())
    chip = [Span(" SIMULATED ", "chip"), Span(" ")] if simulated else []
    sign, words, *_ = [*state, Span("")]
    shortest = min(width(model), NAME_SHORTEST)
    room = cells - measure(left) - shortest - measure(chip) - width(sign.text) - 5
    if words.role == "error" and room >= ERROR_SHORTEST:
        words = words._replace(text=clip(words.text, room))
    state = [Span("  "), sign, words, Span("  ")]
    right = [*state, *chip] if measure(left) + measure(state) + measure(chip) < cells else chip
    while len(left) > 1 and measure(left) + measure(right) >= cells:
        left = left[:-1]
    room = cells - measure(left) - measure(right) - 1
    if model and room >= shortest:
        left = [*left, Span(clip(model, room))]
    return spread(left, right, cells)


def standing_span(node: NodeState, now: float) -> Span:
    """Return sign, name and age of a node's status."""
    if (standing := node.standing(now)) is Standing.LIVE:
        return Span("● live", "good")
    return Span(short_status(node, standing, now), ROLES[standing])


def node_title(node: NodeState, now: float, cells: int) -> Title:
    """Return name, status, hardware and link, or why the node is lost and what to do."""
    left = [Span(f" {clean(node.name)}", "title"), Span("  "), standing_span(node, now)]
    names = Counter(clean(facts.name) for facts in node.facts if facts.parent_index is None)
    gpus = ", ".join(f"{number} × {name}" for name, number in names.items())
    if instances := len(node.facts) - names.total():
        gpus += f", {plural(instances, 'MIG instance')}"
    gpus = gpus or ("no GPU" if node.hello is not None else "")
    return left, f"  {gpus}", _details(node, host_facts(node), now, cells)


def host_facts(node: NodeState) -> str:
    """Return CPU, memory, kernel, driver and CUDA in one line."""
    if node.hello is None:
        return "no data from this node yet"
    host = node.hello.host
    row = dict(zip(HOST_COLUMNS, node.host.tolist(), strict=True))
    job, kills = used_of(row["job_memory_mib"], row["job_memory_limit_mib"]), row["job_oom_kills"]
    return joined(
        (
            clean(host.cpu_model or ""),
            "" if host.cpus is None else plural(host.cpus, "CPU"),
            "" if host.memory_total_mib is None else mebibytes(host.memory_total_mib),
            "" if math.isnan(row["job_memory_mib"]) else f"job {job.replace('/', ' of ')}",
            plural(int(kills), "OOM kill") if kills > 0 else "",
            f"Linux {clean(host.kernel)}" if host.kernel else "",
            f"driver {clean(host.driver_version)}" if host.driver_version else "",
            f"CUDA {clean(host.cuda_version)}" if host.cuda_version else "",
        )
    )


def _details(node: NodeState, what: str, now: float, cells: int) -> list[Line]:
    """Return hardware and link, or the problem, the next retry and what to do."""
    standing = node.standing(now)
    if standing in (Standing.LOST, Standing.UNREACHABLE, Standing.CONNECTING) and node.reason:
        retry = "" if node.retry_at is None else f"retry in {age(max(0.0, node.retry_at - now))}"
        role = "warning" if standing is Standing.CONNECTING else "error"
        lines = wrapped(node.reason, cells, role)[:MOST_LINES]
        return [*lines, *wrapped(joined((retry, node.remedy)), cells)[:MOST_LINES]]
    if standing in (Standing.STALE, Standing.UNHEALTHY):
        words = " the link is up but sends no data; the last values are shown"
        return [[Span(f" {what}", "dim")], [Span(words, "warning")]]
    return [[Span(f" {what}", "dim")], link_line(node)]


def link_line(node: NodeState) -> Line:
    """Return a link's interval, lateness, clock offset and frames."""
    trip, clock = node.round_trip_s, f"clock {DASH}"
    if trip is not None:
        offset = f"{node.offset_s * 1000:+,.1f}".replace("-", "−")
        clock = f"clock {offset} ms · round trip {trip * 1000:.1f} ms"
    facts = (
        f"every {node.interval_s:g} s, {node.late_ms:.1f} ms late",
        clock,
        plural(node.frames, "frame"),
        f"{node.lost_frames} lost" if node.lost_frames else "",
        f"{node.missed_ticks} ticks missed" if node.missed_ticks else "",
        plural(node.reconnects, "reconnect") if node.reconnects else "",
    )
    return [Span(f" {joined(facts)}", "dim")]


def gpu_title(node: NodeState, row: int, now: float, cells: int) -> Title:
    """Return GPU, status and hardware, or the node's problem and what to do."""
    if row >= len(node.facts):
        left = [Span(f" {clean(node.name)}", "title"), Span("  "), standing_span(node, now)]
        return left, "", _details(node, "unknown GPU", now, cells)
    facts = node.facts[row]
    left = [Span(f" {clean(node.name)}:{facts.label}", "title"), Span("  "), standing_span(node, now)]
    if (rank := node.ranks.get(row)) is not None:
        left.insert(1, Span(f" · rank {rank}", "dim"))
    left += [] if node.mine[row] else [Span("  not in your job", "warning")]
    what = joined(
        (
            mebibytes(facts.memory_total_mib) if facts.memory_total_mib else "",
            f"limit {watts(facts.power_limit_w)}" if facts.power_limit_w else "",
            mig_words(facts),
            clean(facts.pci_bus_id or ""),
            "" if facts.numa_node is None else f"NUMA {facts.numa_node}",
            clean(facts.uuid),
        )
    )
    below = _details(node, what, now, cells)
    if node.standing(now) is Standing.LIVE:
        faults = "; ".join(gpu_health(node, row).found)
        below = [*below[:1], *([[Span(f" ! {clip(faults, cells - 4)}", "warning")]] if faults else [])]
    return left, f"  {clean(facts.name)}", below
