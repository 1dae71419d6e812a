"""Many simulated nodes in one process, so that a fleet of a thousand fits on a laptop.

Standard input is a unix socket. For each node the head sends a descriptor over it, with the node's simulation
as JSON; the node's agent serves the head on that descriptor. One thread runs all of them.
"""

from __future__ import annotations

import selectors
import socket
import time
from typing import Dict

from gswarm_agent.folder import NoFolder
from gswarm_agent.server import STREAM_MEMORY_MIB, Server
from gswarm_agent.simulated import SimulatedNode, parse_simulation
from gswarm_agent.spool import MIB, Spool

_CHUNK = 65536


def serve(control_descriptor: int = 0) -> int:
    """Serve the nodes that come over the control socket, until it is closed. Returns an exit status."""
    control = socket.socket(fileno=control_descriptor)
    agents: Dict[int, Server] = {}
    due: Dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            first = min(due.values(), default=None)
            wait_s = None if first is None else max(0.0, (first - time.monotonic_ns()) / 1e9)
            woken = set()
            for key, _ in selector.select(wait_s):
                if key.data is not None:
                    key.data()
                    woken.add(key.fd)
                    continue
                data, descriptors, _, _ = socket.recv_fds(control, _CHUNK, 1)
                if not descriptors:  # the recorder needs no more nodes
                    return 0
                (descriptor,) = descriptors
                agents[descriptor] = _serve_node(descriptor, data.decode(), selector)
                due[descriptor] = 0
            now = time.monotonic_ns()
            woken.update(descriptor for descriptor, at in due.items() if at <= now)
            for descriptor in woken & agents.keys():
                agents[descriptor].handle_due()
                due[descriptor] = agents[descriptor].due_ns
                if agents[descriptor].is_over():
                    del agents[descriptor], due[descriptor]


def _serve_node(descriptor: int, simulation: str, selector: selectors.BaseSelector) -> Server:
    node = parse_simulation(simulation)
    spool = Spool(NoFolder(), round(STREAM_MEMORY_MIB * MIB))
    server = Server(spool, selector, lambda: SimulatedNode(node))
    server.connect(descriptor, descriptor)
    return server
