"""Throttling of GPUs: logs an event when it begins and one when it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gswarm_agent.frame import INFO, WARNING, GpuFacts
from gswarm_agent.metrics import (
    REASON_HW_SLOWDOWN,
    REASON_HW_THERMAL,
    REASON_NAMES,
    REASON_POWER_BRAKE,
    REASON_SW_THERMAL,
)
from gswarm_tui.common.quantities import elapsed
from gswarm_tui.fleet.events import EventLogged

HARMFUL = REASON_HW_SLOWDOWN | REASON_SW_THERMAL | REASON_HW_THERMAL | REASON_POWER_BRAKE
"""Throttling. The power limit isn't among it: a busy GPU in a data centre is nearly always there."""
QUIET_S = 30.0


def reason_names(reasons: int) -> str:
    """Return the throttle reasons as text: "hardware slowdown, thermal (hardware)", empty for none."""
    return ", ".join(name for bit, name in REASON_NAMES.items() if bit & reasons & HARMFUL)


@dataclass
class _Episode:
    """A GPU's throttling: first and last sample with a reason, its reasons, first sample without one."""

    began: float
    last: float
    reasons: int
    cleared: float | None = None


class ThrottleWatch:
    """Throttling episodes of all GPUs; an episode ends after half a minute without a reason.

    Its end is logged then, with the time of the first sample without a reason.
    """

    def __init__(self) -> None:
        self._episodes: dict[str, dict[str, _Episode]] = {}

    def update(
        self, node: str, ts: float, gpus: Sequence[GpuFacts], reasons: Sequence[int]
    ) -> list[EventLogged]:
        """Return the events of a frame; ``reasons`` holds a bit mask of ``HARMFUL`` for each GPU."""
        episodes = self._episodes.setdefault(node, {})
        if not episodes and not any(reasons):
            return []
        logged = []
        for gpu, bits in zip(gpus, reasons, strict=True):
            episode = episodes.get(gpu.uuid)
            if bits:
                if episode is None or bits & ~episode.reasons:
                    message = f"throttled: {reason_names(bits)}"
                    logged.append(EventLogged(ts, "throttle", WARNING, message, node, gpu.index))
                if episode is None:
                    episodes[gpu.uuid] = _Episode(ts, ts, bits)
                else:
                    episode.last, episode.cleared = ts, None
                    episode.reasons |= bits
            elif episode is not None:
                if episode.cleared is None:
                    episode.cleared = ts
                if ts - episode.last > QUIET_S:
                    del episodes[gpu.uuid]
                    lasted = elapsed(max(1, episode.cleared - episode.began))
                    message = f"no longer throttled, after {lasted}"
                    logged.append(
                        EventLogged(episode.cleared, "throttle_end", INFO, message, node, gpu.index)
                    )
        if len(episodes) > len(gpus):  # GPUs that went away
            present = {gpu.uuid for gpu in gpus}
            self._episodes[node] = {uuid: one for uuid, one in episodes.items() if uuid in present}
        return logged
