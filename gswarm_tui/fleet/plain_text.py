"""The fleet in plain sentences, for screen readers, mails and scripts. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gswarm_agent.frame import gpu_label
from gswarm_agent.metrics import GPU_COLUMNS
from gswarm_tui.common.quantities import DASH, celsius, first_of, percent, plural, used_of, watts
from gswarm_tui.fleet.node import Standing
from gswarm_tui.fleet.program import program
from gswarm_tui.fleet.snapshot import Object, node_objects
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.fleet.throttling import reason_names
from gswarm_tui.fleet.totals import Totals, totals

_WITH_VALUES = (Standing.LIVE, Standing.STALE)
MOST_NAMED = 8
"""Nodes or GPUs that a sentence about several names."""


def silent_nodes(fleet: Fleet, now: float) -> list[str]:
    """Return the nodes without present values."""
    return [node.name for node in fleet.nodes.values() if node.standing(now) not in _WITH_VALUES]


def fleet_sentences(fleet: Fleet, now: float) -> list[str]:
    """Return a sentence about the fleet, its problems, then each node's sentence, followed by its GPUs'."""
    silent = set(silent_nodes(fleet, now))
    nodes = [node for node in node_objects(fleet, now) if node["node"] not in silent]
    lines = [_whole(totals(fleet, now))]
    for node in nodes:
        lines += [_gpu(node, gpu) for gpu in node["gpus"] if _is_mute(gpu)]
    for name in filter(silent.__contains__, fleet.nodes):
        state, standing = fleet.nodes[name], fleet.nodes[name].standing(now)
        word = "no data yet" if standing is Standing.CONNECTING else standing.value
        why = ": ".join(filter(None, (word, state.reason)))
        lines.append(_sentence(name, ["; ".join(filter(None, (why, state.remedy)))]))
    problems: dict[str, list[str]] = {}
    for node in nodes:
        for gpu in node["gpus"]:
            if not _is_mute(gpu):
                reasons = reason_names(gpu["clock_reasons"] or 0)
                for problem in (f"throttled by {reasons}" if reasons else "", *gpu["health"]["found"]):
                    problems.setdefault(problem, []).append(f"{node['node']}:{gpu_label(gpu['gpu_index'])}")
    problems.pop("", None)
    lines += [_sentence(what, [first_of(gpus, MOST_NAMED)]) for what, gpus in problems.items()]
    for node in nodes:
        lines += [_node(node), *(f"  {_gpu(node, gpu)}" for gpu in node["gpus"])]
    return lines


def _whole(sums: Totals) -> str:
    simulated = "simulated " if sums.simulated else ""
    nodes = f"{sums.nodes_up:,} of {sums.nodes:,} {simulated}nodes send data"
    if not sums.gpus:
        return f"{nodes}; no GPU was measured."
    facts = [
        f"{sums.busy:,} of {plural(sums.gpus, 'GPU')} busy",
        f"mean utilisation {_figure(percent(sums.mean_util))}",
        "lowest on {}:{}".format(*sums.lowest_util) if sums.lowest_util and sums.gpus > 1 else "",
        f"power {_figure(watts(sums.power_w))}",
        f"GPU memory {_used(sums.memory_used_mib, sums.memory_total_mib)}",
    ]
    return _sentence(nodes, facts)


def _node(node: Object) -> str:
    host, live = node["host"], node["state"] == Standing.LIVE.value
    cpu, memory = percent(host["cpu_pct"]), _used(host["memory_used_mib"], node["memory_total_mib"])
    names = Counter(gpu["name"] for gpu in node["gpus"])
    facts = [f"{number} × {name}" for name, number in names.items()]
    facts = facts or [node["unmeasured"].get("gpu", "no GPUs")]
    facts.append("" if live else f"{node['state']}, so these are its last values")
    facts.append("" if cpu == DASH else f"CPU {cpu}")
    facts.append("" if host["memory_used_mib"] is None else f"host memory {memory}")
    # An interface without a cable is usual, and has no physical state.
    down = [p["port"] for p in node["ports"] if p["state"] == "DOWN" and p["phys_state"] is not None]
    failing = [p["port"] for p in node["ports"] if p["new_errors"]]
    facts.append(f"ports down: {first_of(down, MOST_NAMED)}" if down else "")
    facts.append(f"new errors on ports: {first_of(failing, MOST_NAMED)}" if failing else "")
    return _sentence(node["node"], facts)


def _is_mute(gpu: Object) -> bool:
    """Return whether a GPU answers nothing; its energy counter keeps the last value."""
    return all(gpu[name] is None for name in GPU_COLUMNS if name != "energy_mj")


def _gpu(node: Object, gpu: Object) -> str:
    name = f"{node['node']}:{gpu_label(gpu['gpu_index'])}"
    whole = gpu["parent_index"] is None
    if _is_mute(gpu):
        return _sentence(name, ["does not respond"])
    throttled, temperature = reason_names(gpu["clock_reasons"] or 0), celsius(gpu["temp_c"])
    facts = [
        "not in your job" if gpu["allocated"] is False else "",
        f"utilisation {_figure(percent(gpu['util_pct']))}"
        if whole
        else f"MIG {gpu['mig_profile'] or 'instance'}",
        f"memory {_used(gpu['mem_used_mib'], gpu['memory_total_mib'])}",
        f"power {_figure(watts(gpu['power_w']))}" if whole else "",
        "" if temperature == DASH else f"temperature {temperature}",
        f"throttled by {throttled}" if throttled else "",
        *gpu["health"]["found"],
        *gpu["health"]["counted"],
    ]
    for process in node["processes"]:
        if process["gpu_index"] == gpu["gpu_index"]:
            rank = "" if process["rank"] is None else f"rank {process['rank']}, "
            who, command = process["user_name"] or "unknown", program(process["command"] or "?")
            facts.append(f"{rank}process {process['pid']} of {who}: {command}")
            break
    return _sentence(name, facts)


def _used(used_mib: float | None, total_mib: float | None) -> str:
    return "not measured" if used_mib is None else used_of(used_mib, total_mib).replace("/", " of ")


def _sentence(subject: str, facts: Iterable[str]) -> str:
    return f"{subject}: {', '.join(filter(None, facts))}".rstrip(".") + "."


def _figure(value: str) -> str:
    return "not measured" if value == DASH else value
