"""The fleet in plain sentences, for screen readers, mails and scripts. No I/O."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np

from gswarm_agent.frame import ERROR
from gswarm_agent.metrics import GPU_COLUMNS, HOST_COLUMNS
from gswarm_tui.common.quantities import DASH, celsius, percent, plural, used_of, watts
from gswarm_tui.fleet.events import LINK_LOST, UNREACHABLE
from gswarm_tui.fleet.node import NodeState, Standing
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.fleet.throttling import reason_names
from gswarm_tui.fleet.totals import Totals, totals

_WITH_VALUES = (Standing.LIVE, Standing.STALE)
MOST_NAMED = 8
"""Nodes or GPUs that a sentence about several names, and errors of one node."""


def silent_nodes(fleet: Fleet, now: float) -> list[str]:
    """Return the nodes without present values."""
    return [node.name for node in fleet.nodes.values() if node.standing(now) not in _WITH_VALUES]


def fleet_sentences(fleet: Fleet, now: float) -> list[str]:
    """Return a sentence about the fleet, its problems, then each node's sentence, followed by its GPUs'."""
    lines = [_whole(totals(fleet, now)), *_problems(fleet, now)]
    for node in fleet.nodes.values():
        if node.standing(now) in _WITH_VALUES:
            lines += _node(node, now)
    return lines


def _problems(fleet: Fleet, now: float) -> list[str]:
    """Return sentences about nodes without values, silent GPUs, errors, stale nodes and throttled GPUs."""
    lines: list[str] = []
    stale: list[str] = []
    throttled: dict[str, list[str]] = {}
    for node in fleet.nodes.values():
        standing = node.standing(now)
        if standing not in _WITH_VALUES:
            lines += _node(node, now)
            continue
        if standing is Standing.STALE:
            stale.append(node.name)
        for row, (fact, bits) in enumerate(zip(node.facts, node.clock_reasons, strict=True)):
            if not np.isfinite(node.gpus[row]).any():
                lines.append(_gpu(node, row))
            elif reasons := reason_names(bits):
                throttled.setdefault(reasons, []).append(f"{node.name}:{fact.index}")
    errors: dict[str, list[str]] = {}
    for event in fleet.event_log:
        if event.severity == ERROR and event.kind not in (LINK_LOST, UNREACHABLE):
            subject = event.node or event.kind
            facts = ["" if event.gpu is None else f"GPU {event.gpu}", event.message]
            errors.setdefault(subject, []).append(_sentence(subject, facts))
    for subject, sentences in errors.items():
        lines += sentences[:MOST_NAMED]
        if (more := len(sentences) - MOST_NAMED) > 0:
            lines.append(_sentence(subject, [f"{more:,} more errors"]))
    if stale:
        lines.append(_sentence("stale, so the last values are shown", [_first(stale)]))
    lines += [_sentence(f"throttled by {why}", [_first(gpus)]) for why, gpus in throttled.items()]
    return lines


def _first(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _whole(sums: Totals) -> str:
    simulated = "simulated " if sums.simulated else ""
    nodes = f"{sums.nodes_up:,} of {sums.nodes:,} {simulated}nodes send data"
    if not sums.gpus:
        return f"{nodes}; no GPU was measured."
    lowest = ""
    if sums.lowest_util and sums.gpus > 1:
        lowest = f"lowest on {sums.lowest_util[0]}:{sums.lowest_util[1]}"
    facts = [
        f"{sums.busy:,} of {plural(sums.gpus, 'GPU')} busy",
        f"mean utilisation {_figure(percent(sums.mean_util))}",
        lowest,
        f"power {_figure(watts(sums.power_w))}",
        f"GPU memory {_figure(_used(sums.memory_used_mib, sums.memory_total_mib))}",
    ]
    return _sentence(nodes, facts)


def _node(node: NodeState, now: float) -> list[str]:
    standing = node.standing(now)
    if standing not in _WITH_VALUES:
        word = standing.value
        if standing is Standing.CONNECTING:
            word = "no data yet"
        why = f"{word}: {node.reason}" if node.reason else word
        return [_sentence(node.name, [f"{why}{'; ' if node.remedy else ''}{node.remedy}"])]
    host = dict(zip(HOST_COLUMNS, node.host.tolist(), strict=True))
    total = node.hello.host.memory_total_mib if node.hello is not None else None
    names = Counter(fact.name for fact in node.facts)
    facts = [f"{number} × {name}" for name, number in names.items()] or [_without_gpus(node)]
    facts += [
        "" if standing is Standing.LIVE else f"{standing.value}, so these are its last values",
        _unless_missing("CPU", percent(host["cpu_pct"])),
        _unless_missing("host memory", _used(host["memory_used_mib"], total)),
    ]
    return [_sentence(node.name, facts), *(f"  {_gpu(node, row)}" for row in range(len(node.facts)))]


def _without_gpus(node: NodeState) -> str:
    return node.hello.capabilities.get("gpu", "no GPUs") if node.hello is not None else "no GPUs"


def _gpu(node: NodeState, row: int) -> str:
    fact, values = node.facts[row], node.gpus[row]
    value = dict(zip(GPU_COLUMNS, values.tolist(), strict=True))
    name = f"{node.name}:{fact.index}"
    if not np.isfinite(values).any():
        return _sentence(name, ["does not respond"])
    process = next((each for each in node.processes if each.gpu == row), None)
    facts = [
        "" if node.mine[row] else "not in your job",
        f"utilisation {_figure(percent(value['util_pct']))}",
        f"memory {_figure(_used(value['mem_used_mib'], fact.memory_total_mib))}",
        f"power {_figure(watts(value['power_w']))}",
        _unless_missing("temperature", celsius(value["temp_c"])),
        f"throttled by {words}" if (words := reason_names(node.clock_reasons[row])) else "",
    ]
    if process is not None:
        rank = "" if process.rank is None else f"rank {process.rank}, "
        facts.append(f"{rank}process {process.pid} of {process.user or 'unknown'}: {process.command or '?'}")
    return _sentence(name, facts)


def _used(used_mib: float | None, total_mib: float | None) -> str:
    if used_mib is None or math.isnan(used_mib):
        return DASH
    return used_of(used_mib, total_mib).replace("/", " of ")


def _unless_missing(what: str, value: str) -> str:
    return "" if value == DASH else f"{what} {value}"


def _sentence(subject: str, facts: Iterable[str]) -> str:
    return f"{subject}: {', '.join(filter(None, facts))}".rstrip(".") + "."


def _figure(value: str) -> str:
    return "not measured" if value == DASH else value
