"""How a node stands, in a sign and in words."""

from __future__ import annotations

from gswarm_tui.fleet.node import NodeState, Standing
from gswarm_tui.tui.format import age
from gswarm_tui.tui.text import clean

SIGNS = {
    Standing.CONNECTING: "…",
    Standing.LIVE: " ",
    Standing.STALE: "≈",
    Standing.UNHEALTHY: "‼",
    Standing.LOST: "╳",
    Standing.ENDED: "■",
}
ROLES = {
    Standing.CONNECTING: "dim",
    Standing.LIVE: "text",
    Standing.STALE: "warning",
    Standing.UNHEALTHY: "error",
    Standing.LOST: "error",
    Standing.ENDED: "dim",
}


def short_words(node: NodeState, standing: Standing, now: float) -> str:
    """The state and its age: "╳ lost 12 s", "≈ stale 4 s"; empty while it is live."""
    if standing is Standing.LIVE:
        return ""
    if standing in (Standing.STALE, Standing.UNHEALTHY):
        return f"{SIGNS[standing]} {standing.value} {age(node.age(now) or 0.0)}"
    if standing is Standing.LOST:
        return f"{SIGNS[standing]} lost {age(max(0.0, now - node.since))}"
    if standing is Standing.CONNECTING and node.reason:
        return f"{SIGNS[standing]} connecting again"
    return f"{SIGNS[standing]} {standing.value}"


def long_words(node: NodeState, standing: Standing, now: float) -> str:
    """The state, its reason, what the person can do, and when the next attempt is."""
    words = short_words(node, standing, now)
    if standing is Standing.LOST:
        words += " ago"
    parts = [f"{words}: {clean(node.reason)}" if node.reason and words else words]
    if node.remedy and words:
        parts.append(clean(node.remedy))
    if standing is Standing.LOST and node.retry_at is not None:
        wait = node.retry_at - now
        parts.append(f"retry in {age(wait)}" if wait >= 1 else "retrying")
    return " · ".join(part for part in parts if part)
