"""Status of a node as a sign and as text."""

from __future__ import annotations

from gswarm_tui.common.quantities import age
from gswarm_tui.fleet.node import NodeState, Standing
from gswarm_tui.tui.drawing.text import clean, clip, width

_LOOKS = {
    Standing.CONNECTING: ("…", "dim"),
    Standing.LIVE: (" ", "text"),
    Standing.STALE: ("≈", "warning"),
    Standing.UNHEALTHY: ("‼", "error"),
    Standing.LOST: ("╳", "error"),
    Standing.UNREACHABLE: ("╳", "error"),
    Standing.ENDED: ("■", "dim"),
}
SIGNS = {standing: sign for standing, (sign, _) in _LOOKS.items()}
ROLES = {standing: role for standing, (_, role) in _LOOKS.items()}
THROTTLED = "▲"
"""Sign of a throttled GPU, and of a live node with one."""
NAMED = "!"
"""Sign of a GPU that a finding names, and of its node."""

REASON_SHORTEST = 16
"""Minimum cells of a reason; a shorter one can't be understood."""


def short_status(node: NodeState, standing: Standing, now: float) -> str:
    """Return the status and its age: "╳ lost 12 s", "≈ stale 4 s"; empty while it is live."""
    if standing is Standing.LIVE:
        return ""
    if standing in (Standing.STALE, Standing.UNHEALTHY):
        return f"{SIGNS[standing]} {standing.value} {age(node.age(now) or 0.0)}"
    if standing is Standing.LOST:
        return f"{SIGNS[standing]} lost {age(max(0.0, now - node.since))}"
    if standing is Standing.CONNECTING and node.reason:
        return f"{SIGNS[standing]} {'connecting' if node.hello is None else 'reconnecting'}"
    return f"{SIGNS[standing]} {standing.value}"


def full_status(node: NodeState, standing: Standing, now: float, cells: int | None = None) -> str:
    """Return the status, its reason, what to do, and the time of the next retry.

    Within ``cells`` the reason is cut before the remedy, but not below ``REASON_SHORTEST``.
    """
    state = short_status(node, standing, now)
    if not state:
        return ""
    if standing is Standing.LOST:
        state += " ago"
    reason, remedy, retry = clean(node.reason), clean(node.remedy), ""
    if standing in (Standing.LOST, Standing.UNREACHABLE) and node.retry_at is not None:
        wait = node.retry_at - now
        retry = f"retry in {age(wait)}" if wait >= 1 else "retrying"
    whole = _joined(state, reason, remedy, retry)
    if cells is None or width(whole) <= cells:
        return whole
    room = cells - width(_joined(state, " ", remedy)) + 1
    return _joined(state, clip(reason, room) if room >= REASON_SHORTEST else reason, remedy)


def _joined(state: str, reason: str, *more: str) -> str:
    return " · ".join([f"{state}: {reason}" if reason else state, *filter(None, more)])
