"""Throttling of GPUs: logs an event when it begins and one when it ends."""

from __future__ import annotations

from collections.abc import Sequence

from gswarm_agent.frame import INFO, WARNING, GpuFacts
from gswarm_agent.metrics import (
    REASON_HW_SLOWDOWN,
    REASON_HW_THERMAL,
    REASON_NAMES,
    REASON_POWER_BRAKE,
    REASON_POWER_CAP,
    REASON_SW_THERMAL,
)
from gswarm_tui.common.quantities import elapsed
from gswarm_tui.fleet.events import EventLogged

HARMFUL = REASON_HW_SLOWDOWN | REASON_SW_THERMAL | REASON_HW_THERMAL | REASON_POWER_BRAKE
WATCHED = HARMFUL | REASON_POWER_CAP
QUIET_S = 30.0


def reason_names(reasons: int) -> str:
    """Return the throttle reasons as text: "power cap, thermal (hardware)", empty for none."""
    return ", ".join(name for bit, name in REASON_NAMES.items() if bit & reasons & WATCHED)


class ThrottleWatch:
    """Throttling episodes of all GPUs; an episode ends after half a minute without a reason."""

    def __init__(self) -> None:
        self._episodes: dict[str, dict[str, tuple[float, float, int]]] = {}

    def update(
        self, node: str, ts: float, gpus: Sequence[GpuFacts], reasons: Sequence[int]
    ) -> list[EventLogged]:
        """Return the events of a frame; ``reasons`` holds a bit mask of ``WATCHED`` for each GPU."""
        episodes = self._episodes.get(node)
        if not episodes and not any(reasons):
            return []
        if episodes is None:
            episodes = self._episodes[node] = {}
        logged = []
        for gpu, bits in zip(gpus, reasons, strict=True):
            episode = episodes.get(gpu.uuid)
            if bits:
                if episode is None or bits & ~episode[2]:
                    severity = WARNING if bits & HARMFUL else INFO
                    message = f"throttled: {reason_names(bits)}"
                    logged.append(EventLogged(ts, "throttle", severity, message, node, gpu.index))
                began = ts if episode is None else episode[0]
                episodes[gpu.uuid] = (began, ts, bits | (episode[2] if episode else 0))
            elif episode is not None and ts - episode[1] > QUIET_S:
                del episodes[gpu.uuid]
                message = f"no longer throttled, after {elapsed(max(1, episode[1] - episode[0]))}"
                logged.append(EventLogged(ts, "throttle_end", INFO, message, node, gpu.index))
        if len(episodes) > len(gpus):  # GPUs that went away
            present = {gpu.uuid for gpu in gpus}
            self._episodes[node] = {uuid: one for uuid, one in episodes.items() if uuid in present}
        return logged
