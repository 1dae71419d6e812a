"""The NVLinks of one GPU: which are up, how fast they are, where they lead, and faults among them."""

from __future__ import annotations

from dataclasses import dataclass

from gswarm_agent.probes.gpus.nvidia_nvml import SUCCESS, Call, CallQuery, FieldQuery, Nvml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Collection, Dict, Mapping, Optional, Sequence, Tuple

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


class NvLinkReader:
    """Reads the NVLinks of one GPU; what doesn't change is read again only after states or speeds did."""

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        self._nvml, self.handle = nvml, handle
        api = nvml.api
        state = nvml.function("nvmlDeviceGetNvLinkState")
        query = CallQuery([Call(state, "I", (link,)) for link in range(api.NVML_NVLINK_MAX_LINKS)])
        codes, _ = query.run(handle)
        self._numbers = [link for link, code in enumerate(codes) if code == SUCCESS]
        self._states = CallQuery([Call(state, "I", (link,)) for link in self._numbers])
        self._speeds = FieldQuery([(api.NVML_FI_DEV_NVLINK_GET_SPEED, link) for link in self._numbers])
        self._seen: Sequence[object] = ()
        self._links: Tuple[NvLink, ...] = ()

    def read(self) -> Tuple[NvLink, ...]:
        """Return all NVLinks; the same tuple as before if nothing has changed."""
        if not self._numbers:
            return ()
        codes, states = self._states.run(self.handle)
        verdict, field_codes, numbers = self._speeds.run(self._nvml.get_fields, self.handle)
        if any(codes):
            return self._links
        speeds = [
            round(mb_s) if verdict == SUCCESS == code and mb_s else None
            for code, mb_s in zip(field_codes, numbers)
        ]
        if (seen := (*states, *speeds)) != self._seen:
            self._seen = seen
            self._links = tuple(map(self._link, self._numbers, states, speeds))
        return self._links

    def _link(self, number: int, state: int, mb_s: Optional[int]) -> NvLink:
        api, maybe = self._nvml.api, self._nvml.maybe
        if not state:
            return NvLink(False, mb_s)
        version = maybe(api.nvmlDeviceGetNvLinkVersion, self.handle, number)
        remote = ""
        if maybe(api.nvmlDeviceGetNvLinkRemoteDeviceType, self.handle, number) == (
            api.NVML_NVLINK_DEVICE_TYPE_SWITCH
        ):
            remote = NVSWITCH
        elif (pci := maybe(api.nvmlDeviceGetNvLinkRemotePciInfo, self.handle, number)) is not None:
            remote = pci.busId
        return NvLink(True, mb_s, None if version is None else _VERSIONS.get(version), remote)


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
