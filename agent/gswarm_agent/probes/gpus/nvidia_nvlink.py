"""The NVLinks of one GPU: which are up, how fast they are, where they lead, and faults among them."""

from __future__ import annotations

from dataclasses import dataclass

from gswarm_agent.probes.gpus.nvidia_nvml import NOT_SUPPORTED, SUCCESS, Nvml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

NVSWITCH = "NVSwitch"
# nvmlNvlinkVersion_t in nvml.h.
_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}


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
    speeds = maybe(nvml.fields, handle, speed_fields) or [(NOT_SUPPORTED, 0, 0)] * len(states)
    links: List[NvLink] = []
    for (number, up), (code, speed, _) in zip(states.items(), speeds):
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
