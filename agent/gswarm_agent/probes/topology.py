"""PCI topology from /sys: network adapters, and the path between two devices."""

from __future__ import annotations

import os
from dataclasses import dataclass

from gswarm_agent.probes.procfs import read_start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional

# PCI functions from a device up to the bridge inside its switch: the device and the port above it.
_SWITCH_PORTS = 2


@dataclass(frozen=True)
class Adapter:
    """A network adapter: its name, its device's folder in /sys, and its rate in one direction [GB/s]."""

    name: str
    folder: str
    gb_s: Optional[float]


def find_adapters(sys: str) -> List[Adapter]:
    """Return the InfiniBand and RoCE adapters of this node."""
    top = f"{sys}/class/infiniband"
    try:
        names = sorted(os.listdir(top), key=lambda name: (len(name), name))
    except OSError:
        return []
    return [
        Adapter(name, os.path.realpath(f"{top}/{name}/device"), _rate_gb_s(f"{top}/{name}/ports/1/rate"))
        for name in names
    ]


def _rate_gb_s(path: str) -> Optional[float]:
    """Return the GB/s of a port's file, which has a text such as 400 Gb/sec (4X NDR)."""
    words = read_start(path).split()
    try:
        return float(words[0]) / 8
    except (ValueError, IndexError):
        return None


def pci_kind(one: str, other: str) -> str:
    """Return the connection of two PCI devices, by their folders in /sys, as nvidia-smi topo -m prints it."""
    paths = [folder.partition("/devices/")[2].split("/") for folder in (one, other)]
    common = 0
    for first, second in zip(*paths):
        if first != second:
            break
        common += 1
    if common > 1:
        return "PIX" if max(map(len, paths)) - common <= _SWITCH_PORTS else "PXB"
    if common == 1:
        return "PHB"
    return "NODE" if read_numa_node(one) == read_numa_node(other) else "SYS"


def pci_folder(sys: str, bus_id: str) -> str:
    """Return the folder in /sys of a PCI device by its address."""
    return os.path.realpath(f"{sys}/bus/pci/devices/{bus_id[-12:].lower()}")


def read_numa_node(folder: str) -> Optional[int]:
    """Return the NUMA node of a device by its folder in /sys; None where the firmware names none (-1)."""
    text = read_start(f"{folder}/numa_node").strip()
    return int(text) if text.isdigit() else None
