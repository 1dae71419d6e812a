"""Finds faults of a GPU in its newest metrics. Its PCIe link is compared with the fastest it can be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from gswarm_agent.frame import GpuLink
from gswarm_agent.metrics import GPU_COLUMNS, RECOVERY_ACTIONS
from gswarm_tui.common.quantities import plural
from gswarm_tui.fleet.gpu_links import HOST
from gswarm_tui.fleet.node import NodeState


class Health(NamedTuple):
    """The faults of one GPU in words, and the areas in which there are none.

    ``found`` are faults now; ``counted`` are earlier errors. ``clear`` are the areas without either, and
    ``unmeasured`` those without measurements.
    """

    found: tuple[str, ...]
    counted: tuple[str, ...]
    clear: tuple[str, ...]
    unmeasured: tuple[str, ...]


_AREAS = {
    "recovery action": ("recovery_action",),
    "remapped memory": ("remap_failed", "remap_pending", "remapped_uncorrectable"),
    "memory errors": ("ecc_uncorrected",),
    "PCIe link": ("pcie_gen", "pcie_width"),
    "NVLinks": ("nvlink_errors", "nvlink_recoveries"),
    "fabric": ("fabric_state",),
}
_COUNTS = {
    "remapped_uncorrectable": ("memory row", "replaced after uncorrected errors"),
    "ecc_uncorrected": ("uncorrected memory error", "since the driver was loaded"),
    "nvlink_errors": ("NVLink error", "since the driver was loaded"),
    "nvlink_recoveries": ("NVLink recovery event", "since the driver was loaded"),
}


def gpu_health(node: NodeState, row: int) -> Health:
    """Return the health of the GPU at this position, by the newest metrics."""
    values = zip(GPU_COLUMNS, node.gpus[row].tolist(), strict=True)
    measured = {name: value for name, value in values if math.isfinite(value)}
    links = () if node.hello is None else node.hello.links
    host = next((link for link in links if (link.gpu, link.peer) == (row, HOST)), None)
    faults = _faults(measured, host)
    counts = {
        name: f"{plural(round(measured[name]), noun)} {since}"
        for name, (noun, since) in _COUNTS.items()
        if measured.get(name)
    }
    found: list[str] = []
    counted: list[str] = []
    clear: list[str] = []
    unmeasured: list[str] = []
    for area, names in _AREAS.items():
        found += [faults[name] for name in names if name in faults]
        counted += [counts[name] for name in names if name in counts]
        if measured.keys().isdisjoint(names):
            unmeasured.append(area)
        elif not {*faults, *counts} & {*names}:
            clear.append(area)
    return Health(tuple(found), tuple(counted), tuple(clear), tuple(unmeasured))


def _faults(measured: Mapping[str, float], host: GpuLink | None) -> dict[str, str]:
    """Return what is wrong now by one of the metrics that show it."""
    faults: dict[str, str] = {}
    if action := round(measured.get("recovery_action", 0)):
        faults["recovery_action"] = f"the driver asks to {RECOVERY_ACTIONS.get(action, f'do {action}')}"
    if measured.get("remap_failed"):
        faults["remap_failed"] = "a memory row could not be replaced: ask for another GPU"
    if measured.get("remap_pending"):
        faults["remap_pending"] = "a memory row waits to be replaced: reset the GPU"
    if host is not None and host.version is not None and "pcie_gen" in measured:
        now, most = (measured["pcie_gen"], measured.get("pcie_width", 0)), (float(host.version), host.links)
        if now[0] < most[0] or now[1] < most[1]:
            speeds = "PCIe {:.0f}.0 x{:.0f} under load, {:.0f}.0 x{:.0f} is possible"
            faults["pcie_gen"] = speeds.format(*now, *most)
    if measured.get("fabric_state") in (1, 2):
        faults["fabric_state"] = "the GPU hasn't joined the NVLink fabric: have its fabric manager checked"
    return faults
