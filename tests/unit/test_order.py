"""Order of the nodes on the screen."""

from __future__ import annotations

from gswarm_agent.frame import TABLES, Processes, ProcessSample
from gswarm_agent.metrics import PROCESS_COLUMNS
from gswarm_tui.fleet.events import Phase
from gswarm_tui.fleet.node import NodeState
from gswarm_tui.fleet.order import Order, sort_nodes

NAN = float("nan")
NONE = (None,) * len(PROCESS_COLUMNS)


def names(nodes: list[NodeState]) -> list[str]:
    return [node.name for node in nodes]


def test_node_names_sort_naturally() -> None:
    nodes = [NodeState(name) for name in ("gpu10", "gpu9", "gpu010", "a-2-gpu1", "gpu")]
    assert names(sort_nodes(nodes, Order.NAME, 0, ())) == ["a-2-gpu1", "gpu", "gpu9", "gpu010", "gpu10"]
    assert sort_nodes(nodes, Order.GIVEN, 0, ()) == nodes


def test_sorting_by_state_puts_lost_nodes_first() -> None:
    phases = {"a": Phase.LIVE, "b": Phase.CONNECTING, "c": Phase.LOST, "d": Phase.ENDED, "e": Phase.LIVE}
    nodes = [NodeState(name, phase=phase, last_arrival=0.0) for name, phase in phases.items()]
    nodes[0].last_arrival = 100.0
    nodes.append(NodeState("f", phase=Phase.LIVE, last_arrival=90.0))
    assert names(sort_nodes(nodes, Order.STATE, 100.0, ())) == ["c", "e", "f", "b", "a", "d"]


def test_sorting_by_rank_follows_the_lowest_rank_of_each_node() -> None:
    nodes = [NodeState(name) for name in "abcd"]
    for node, ranks in zip(nodes, ((8, 9), (), (None, 1, 0), (2,)), strict=True):
        processes = [ProcessSample(g, 1, None, None, rank, None, NONE) for g, rank in enumerate(ranks)]
        node.process_table = Processes.of(TABLES.processes, processes)
    assert names(sort_nodes(nodes, Order.RANK, 0, ())) == ["c", "d", "a", "b"]


def test_sorting_by_metric_puts_unmeasured_nodes_last() -> None:
    nodes = [NodeState(name) for name in "abcd"]
    means = [50.0, NAN, 3.0, 50.0]
    assert names(sort_nodes(nodes, Order.UP, 0, means)) == ["c", "a", "d", "b"]
    assert names(sort_nodes(nodes, Order.DOWN, 0, means)) == ["a", "d", "c", "b"]
