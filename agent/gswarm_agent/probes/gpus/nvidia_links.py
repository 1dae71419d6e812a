"""How NVIDIA's GPUs are connected to each other, NVSwitches, adapters and the host; faults of NVLinks."""

from __future__ import annotations

import os
from dataclasses import dataclass

from gswarm_agent.frame import INFO, WARNING, GpuLink, Note
from gswarm_agent.probes.gpus.nvidia_nvml import NOT_SUPPORTED, SUCCESS, Nvml
from gswarm_agent.probes.gpus.vendor import Whereabouts
from gswarm_agent.probes.procfs import read_start
from gswarm_agent.probes.rates import SECOND_NS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Set, Tuple

    from gswarm_agent.probes.gpus.nvidia_gpu import Gpu

NVSWITCH = "NVSwitch"
# PCI functions from a device up to the bridge inside its switch: the device and the port above it.
_SWITCH_PORTS = 2
# nvmlNvlinkVersion_t in nvml.h.
_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
HOST = "host"
"""The peer of a GPU that is its own node."""
_NVLINKS_NS = 60 * SECOND_NS
"""Maximum age of the NVLinks' states."""

# nvmlGpuTopologyLevel_t in the words of nvidia-smi topo -m.
_KINDS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
# Bytes per second and lane by generation, one way, encoding taken off (PCI Express base specification).
_LANE_BYTES = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}


@dataclass(frozen=True)
class NvLink:
    """One NVLink of a GPU: whether it is up, its speed in one direction, and what is at its other end.

    ``remote`` is NVSWITCH, a PCI address as NVML writes it, or empty if unknown.
    """

    up: bool
    mb_s: Optional[int]
    version: Optional[str] = None
    remote: str = ""


def read_nvlinks(nvml: Nvml, handle: Any) -> Tuple[NvLink, ...]:
    """Return all NVLinks of a GPU."""
    api, maybe = nvml.api, nvml.maybe
    states = {
        number: state
        for number in range(api.NVML_NVLINK_MAX_LINKS)
        if (state := maybe(api.nvmlDeviceGetNvLinkState, handle, number)) is not None
    }
    speed_fields = [(api.NVML_FI_DEV_NVLINK_GET_SPEED, number) for number in states]
    speeds = maybe(nvml.fields, handle, speed_fields) or [(NOT_SUPPORTED, 0)] * len(states)
    links: List[NvLink] = []
    for (number, up), (code, speed) in zip(states.items(), speeds):
        mb_s = round(speed) if code == SUCCESS and speed else None
        if not up:
            links.append(NvLink(False, mb_s))
            continue
        version = maybe(api.nvmlDeviceGetNvLinkVersion, handle, number)
        kind = maybe(api.nvmlDeviceGetNvLinkRemoteDeviceType, handle, number)
        remote = NVSWITCH
        if kind != api.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            pci = maybe(api.nvmlDeviceGetNvLinkRemotePciInfo, handle, number)
            remote = "" if pci is None else pci.busId
        links.append(NvLink(True, mb_s, None if version is None else _VERSIONS.get(version), remote))
    return tuple(links)


def nvlink_faults(
    gpus: Mapping[int, Sequence[NvLink]], were_up: Mapping[int, Collection[int]]
) -> Dict[int, str]:
    """Return what is wrong with the NVLinks of each GPU, by its index; GPUs without faults are left out.

    A link is down if it was up before, or if others of its GPU are up, but fewer than on another GPU with as
    many links. It is slow if such GPUs have faster ones.
    """
    faults: Dict[int, str] = {}
    for index, links in gpus.items():
        alike = [other for other in gpus.values() if len(other) == len(links)]
        most = max(sum(link.up for link in other) for other in alike)
        best = max((link.mb_s or 0 for other in alike for link in other if link.up), default=0)
        fewer = 0 < sum(link.up for link in links) < most
        before = were_up.get(index, ())
        down = [n for n, link in enumerate(links) if not link.up and (fewer or n in before)]
        slow = [n for n, link in enumerate(links) if link.up and link.mb_s is not None and link.mb_s < best]
        words = []
        if down:
            words.append(f"{len(down)} of {len(links)} NVLinks down: {_listed(down)}")
        if slow:
            speeds = f"{min(links[n].mb_s or 0 for n in slow) / 1000:.3g} instead of {best / 1000:.3g} GB/s"
            words.append(f"{len(slow)} of {len(links)} NVLinks slow, {speeds}: {_listed(slow)}")
        if words:
            faults[index] = "; ".join(words)
    return faults


def _listed(numbers: Sequence[int]) -> str:
    return "all" if len(numbers) > 8 else ", ".join(map(str, numbers))


class Links:
    """The connections of all GPUs, and notes on NVLinks that are down or slow."""

    def __init__(
        self, nvml: Nvml, gpus: Sequence[Gpu], sys: str, notes: List[Note], whereabouts: Whereabouts
    ) -> None:
        self._nvml, self._gpus, self._sys = nvml, gpus, sys
        self._notes, self._whereabouts = notes, whereabouts
        self._nvlinks: Dict[int, Sequence[NvLink]] = {}
        self._were_up: Dict[int, Set[int]] = {}
        self._faults: Dict[int, str] = {}
        self._links: Tuple[GpuLink, ...] = ()
        self._due: Dict[int, int] = {}

    def read(self, now_ns: int) -> Tuple[GpuLink, ...]:
        """Return how the GPUs are connected, read again if NVLinks have changed.

        The NVLinks of each GPU are read once a minute, those of different GPUs at different times.
        """
        due = [gpu for gpu in self._gpus if now_ns >= self._due.get(gpu.index, 0)]
        if not due:
            return self._links
        before = dict(self._nvlinks)
        for turn, gpu in enumerate(due, 1):
            share = turn / len(due) if gpu.index not in self._due else 1
            self._due[gpu.index] = now_ns + round(share * _NVLINKS_NS)
            self._whereabouts.enter(gpu.index)
            self._nvlinks[gpu.index] = read_nvlinks(self._nvml, gpu.handle) if gpu.reachable else ()
        if self._nvlinks != before:
            self._note_faults()
            self._links = self._read_all([gpu for gpu in self._gpus if gpu.reachable])
        return self._links

    def _note_faults(self) -> None:
        before, self._faults = self._faults, nvlink_faults(self._nvlinks, self._were_up)
        for index, links in self._nvlinks.items():
            self._were_up.setdefault(index, set()).update(n for n, link in enumerate(links) if link.up)
            fault = self._faults.get(index)
            if fault is not None and fault != before.get(index):
                self._notes.append(Note("nvlink_degraded", WARNING, fault, index))
            elif fault is None and index in before and links:
                message = "all NVLinks are up again, at full speed"
                self._notes.append(Note("nvlink_restored", INFO, message, index))

    def _read_all(self, gpus: Sequence[Gpu]) -> Tuple[GpuLink, ...]:
        api, maybe = self._nvml.api, self._nvml.maybe
        buses: Dict[int, str] = {}
        pcie: Dict[int, GpuLink] = {}
        for gpu in gpus:
            self._whereabouts.enter(gpu.index)
            pci = maybe(api.nvmlDeviceGetPciInfo, gpu.handle)
            buses[gpu.index] = "" if pci is None else pci.busId
            generation = maybe(api.nvmlDeviceGetMaxPcieLinkGeneration, gpu.handle)
            width = maybe(api.nvmlDeviceGetMaxPcieLinkWidth, gpu.handle)
            if generation and width:
                # Later generations count as the last known.
                gb_s = _LANE_BYTES[min(generation, max(_LANE_BYTES))] * width / 1e9
                pcie[gpu.index] = GpuLink(gpu.index, HOST, "PCIe", width, f"{generation}.0", gb_s)
        adapters = find_adapters(self._sys)
        found: List[GpuLink] = []
        for gpu in gpus:
            self._whereabouts.enter(gpu.index)
            own_nvlinks = [link for link in self._nvlinks[gpu.index] if link.up]
            switched = [link for link in own_nvlinks if link.remote == NVSWITCH]
            for peer in gpus:
                if peer is gpu:
                    continue
                level = maybe(api.nvmlDeviceGetTopologyCommonAncestor, gpu.handle, peer.handle)
                # NVLinks between two GPUs are direct ones, and those through switches that both have.
                ends = sum(link.up and link.remote == NVSWITCH for link in self._nvlinks[peer.index])
                used = [link for link in own_nvlinks if link.remote == buses[peer.index]] + switched[:ends]
                if used:
                    found.append(_bundle(gpu.index, f"GPU{peer.nvml_index}", used))
                elif level in _KINDS:
                    both = pcie.get(gpu.index), pcie.get(peer.index)
                    found.append(_slower(gpu.index, f"GPU{peer.nvml_index}", _KINDS[level], *both))
            if switched:
                found.append(_bundle(gpu.index, NVSWITCH, switched))
            folder = pci_folder(self._sys, buses[gpu.index])
            for adapter in adapters:
                link = _slower(
                    gpu.index, adapter.name, pci_kind(folder, adapter.folder), pcie.get(gpu.index), None
                )
                if adapter.gb_s is not None and (link.gb_s is None or adapter.gb_s < link.gb_s):
                    link = GpuLink(gpu.index, adapter.name, link.kind, 0, None, adapter.gb_s)
                found.append(link)
            if gpu.index in pcie:
                found.append(pcie[gpu.index])
        return tuple(found)


def _bundle(gpu: int, peer: str, links: Sequence[NvLink]) -> GpuLink:
    speeds = [link.mb_s for link in links if link.mb_s is not None]
    gb_s = sum(speeds) / 1000 if len(speeds) == len(links) else None
    return GpuLink(gpu, peer, f"NV{len(links)}", len(links), links[0].version, gb_s)


def _slower(gpu: int, peer: str, kind: str, one: Optional[GpuLink], other: Optional[GpuLink]) -> GpuLink:
    """Return a connection over PCIe with the bandwidth of the slower of two devices."""
    both = [link.gb_s for link in (one, other) if link is not None and link.gb_s is not None]
    return GpuLink(gpu, peer, kind, 0, None, min(both, default=None))


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
