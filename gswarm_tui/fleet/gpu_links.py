"""Capacity of a GPU's connections, and traffic on them as a share of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from gswarm_agent.frame import GpuLink

NVSWITCH, HOST = "NVSwitch", "host"
_GPU = re.compile(r"GPU([0-9]{1,4})")


def gpu_index(peer: str) -> int | None:
    """Return the NVML index of a peer that is a GPU, None for another."""
    match = _GPU.fullmatch(peer)
    return int(match[1]) if match else None


def capacity(links: Iterable[GpuLink], gpu: int) -> tuple[float | None, float | None]:
    """Return the capacity of the NVLinks and the PCIe link of the GPU at this position, None where unknown.

    It is that of one direction [GB/s]. NVLinks to switches reach every GPU, so they count once.
    """
    own = {link.peer: link for link in links if link.gpu == gpu}
    if (switch := own.get(NVSWITCH)) is not None:
        bundles = [switch]
    else:
        bundles = [link for peer, link in own.items() if gpu_index(peer) is not None and link.links]
    speeds = [link.gb_s for link in bundles if link.gb_s is not None]
    host = own.get(HOST)
    return sum(speeds) if speeds else None, None if host is None else host.gb_s


def share_pct(mb_s: float, gb_s: float | None) -> float:
    """Return traffic as percent of what the way carries, NaN where either is unknown."""
    return mb_s / gb_s / 10 if gb_s else float("nan")


def peers(links: Sequence[GpuLink]) -> tuple[str, ...]:
    """Return all peers but the host: GPUs by index, NVSwitches, then network adapters."""

    def order(name: str) -> tuple[int, int, int, str]:
        index = gpu_index(name)
        kind = 0 if index is not None else 1 if name == NVSWITCH else 2
        return kind, index or 0, len(name), name

    return tuple(sorted({link.peer for link in links if link.peer != HOST}, key=order))
