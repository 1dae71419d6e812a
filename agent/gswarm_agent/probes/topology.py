"""How the GPUs of a node are connected: to each other, to NVSwitches, network adapters and the host."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass

from gswarm_agent.frame import GpuLink
from gswarm_agent.probes.nvlink import NVSWITCH, NvLink
from gswarm_agent.probes.nvml import Nvml
from gswarm_agent.probes.pcie import lane_bytes
from gswarm_agent.probes.procfs import read_start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Mapping, Optional, Sequence, Tuple

    from gswarm_agent.probes.gpu import Gpu

HOST = "host"
"""The peer of a GPU that is its own node."""

# nvmlGpuTopologyLevel_t in the words of nvidia-smi topo -m.
_KINDS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_SWITCH_PORTS = 2
"""PCI functions from a device up to the bridge inside its switch: the device and the port above it."""


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
    nodes = [read_start(f"{folder}/numa_node").strip() for folder in (one, other)]
    return "NODE" if nodes[0] == nodes[1] else "SYS"


def read_gpu_links(nvml: Nvml, gpus: Sequence[Gpu], sys: str) -> Tuple[GpuLink, ...]:
    """Return how these GPUs are connected, those that don't answer left out."""
    api, maybe = nvml.api, nvml.maybe
    reachable = [gpu for gpu in gpus if gpu.reachable]
    buses: Dict[int, str] = {}
    pcie: Dict[int, GpuLink] = {}
    for gpu in reachable:
        pci = maybe(api.nvmlDeviceGetPciInfo, gpu.handle)
        buses[gpu.index] = "" if pci is None else pci.busId
        generation = maybe(api.nvmlDeviceGetMaxPcieLinkGeneration, gpu.handle)
        width = maybe(api.nvmlDeviceGetMaxPcieLinkWidth, gpu.handle)
        if generation and width:
            gb_s = lane_bytes(generation) * width / 1e9
            pcie[gpu.index] = GpuLink(gpu.index, HOST, "PCIe", width, f"{generation}.0", gb_s)
    adapters = find_adapters(sys)
    found: List[GpuLink] = []
    for gpu in reachable:
        for peer in reachable:
            if peer is gpu:
                continue
            level = maybe(api.nvmlDeviceGetTopologyCommonAncestor, gpu.handle, peer.handle)
            bundle = _nvlink_between(gpu, peer, buses)
            if bundle is not None:
                found.append(bundle)
            elif level in _KINDS:
                ends = pcie.get(gpu.index), pcie.get(peer.index)
                found.append(_slower(gpu.index, f"GPU{peer.index}", _KINDS[level], *ends))
        switched = [link for link in gpu.nvlinks if link.up and link.remote == NVSWITCH]
        if switched:
            found.append(_bundle(gpu.index, NVSWITCH, switched, len(switched)))
        own = os.path.realpath(f"{sys}/bus/pci/devices/{buses[gpu.index][-12:].lower()}")
        for adapter in adapters:
            link = _slower(gpu.index, adapter.name, pci_kind(own, adapter.folder), pcie.get(gpu.index), None)
            if adapter.gb_s is not None and (link.gb_s is None or adapter.gb_s < link.gb_s):
                link = GpuLink(gpu.index, adapter.name, link.kind, 0, None, adapter.gb_s)
            found.append(link)
        if gpu.index in pcie:
            found.append(pcie[gpu.index])
    return tuple(found)


def _nvlink_between(gpu: Gpu, peer: Gpu, buses: Mapping[int, str]) -> Optional[GpuLink]:
    """Return the NVLinks between two GPUs: direct ones, and those through switches that both have."""
    ends = Counter(link.remote for link in peer.nvlinks if link.up)
    used = [link for link in gpu.nvlinks if link.up and link.remote == buses[peer.index]]
    switched = [link for link in gpu.nvlinks if link.up and link.remote == NVSWITCH]
    used += switched[: ends[NVSWITCH]]
    return _bundle(gpu.index, f"GPU{peer.index}", used, len(used)) if used else None


def _bundle(gpu: int, peer: str, links: Sequence[NvLink], count: int) -> GpuLink:
    speeds = [link.mb_s for link in links if link.mb_s is not None]
    gb_s = sum(speeds) / 1000 if len(speeds) == count else None
    return GpuLink(gpu, peer, f"NV{count}", count, links[0].version, gb_s)


def _slower(gpu: int, peer: str, kind: str, one: Optional[GpuLink], other: Optional[GpuLink]) -> GpuLink:
    """Return a connection over PCIe with the bandwidth of the slower of two devices."""
    both = [link.gb_s for link in (one, other) if link is not None and link.gb_s is not None]
    return GpuLink(gpu, peer, kind, 0, None, min(both, default=None))
