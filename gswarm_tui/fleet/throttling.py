"""Reasons for clocks that count as throttling."""

from __future__ import annotations

from gswarm_agent.metrics import (
    REASON_HW_SLOWDOWN,
    REASON_HW_THERMAL,
    REASON_NAMES,
    REASON_POWER_BRAKE,
    REASON_SW_THERMAL,
)

HARMFUL = REASON_HW_SLOWDOWN | REASON_SW_THERMAL | REASON_HW_THERMAL | REASON_POWER_BRAKE
"""Throttling. The power limit isn't among it: a busy GPU in a data centre is nearly always there."""


def reason_names(reasons: int) -> str:
    """Return the throttle reasons as text: "hardware slowdown, thermal (hardware)", empty for none."""
    return ", ".join(name for bit, name in REASON_NAMES.items() if bit & reasons & HARMFUL)
