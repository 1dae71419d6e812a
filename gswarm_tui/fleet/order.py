"""Sort order of the nodes on screen."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

from gswarm_tui.fleet.names import natural_key
from gswarm_tui.fleet.node import NodeState, Standing


class Order(enum.Enum):
    """Sort order of nodes; the value is its label."""

    GIVEN = "as given"
    NAME = "by name"
    STATE = "by state"
    RANK = "by rank"
    UP = "lowest first"
    DOWN = "highest first"


def sort_nodes(
    nodes: Sequence[NodeState], order: Order, now: float, means: Sequence[float]
) -> list[NodeState]:
    """Return the nodes sorted; ``means`` holds each node's shown metric; unmeasured (NaN) sorts last."""
    if order is Order.GIVEN:
        return list(nodes)
    if order is Order.NAME:
        return sorted(nodes, key=lambda node: natural_key(node.name))
    if order is Order.STATE:
        worst_first = list(Standing)
        return sorted(nodes, key=lambda node: worst_first.index(node.standing(now)))
    if order is Order.RANK:
        return sorted(nodes, key=lambda node: min(node.ranks.values(), default=math.inf))
    sign = -1.0 if order is Order.DOWN else 1.0
    keys = [math.inf if math.isnan(mean) else sign * mean for mean in means]
    return [nodes[place] for place in sorted(range(len(nodes)), key=keys.__getitem__)]
