"""Many simulated nodes in one process, so that a fleet of a thousand fits on a laptop.

Standard input is a unix socket. For each node the head sends a descriptor over it, with the node's simulation
as JSON; the node's agent serves the head on that descriptor. One thread runs all of them.
"""

from __future__ import annotations

import selectors
import socket
import time
from typing import Dict, Optional

from gswarm_agent.folder import NoFolder
from gswarm_agent.sampler import Sampler
from gswarm_agent.server import STREAM_MEMORY_MIB, Server
from gswarm_agent.simulated import SimulatedNode, parse_simulation
from gswarm_agent.spool import MIB, Spool

_CHUNK = 65536


class _SimulatedAgent:
    """The agent of one simulated node."""

    def __init__(self, descriptor: int, simulation: str, selector: selectors.BaseSelector) -> None:
        self.sampler: Optional[Sampler] = None
        self._probe = SimulatedNode(parse_simulation(simulation))
        self._server = Server(Spool(NoFolder(), round(STREAM_MEMORY_MIB * MIB)), selector, threaded=False)
        self._server.connect(descriptor, descriptor, compress=False)  # it stays on this machine

    def handle_due(self) -> bool:
        """Run all due work except sampling; return whether the agent still runs."""
        if self.sampler is None and self._server.started.is_set():
            self.sampler = self._server.introduce(self._probe)
        self._server.handle_due()
        return self._continues()

    def sample(self) -> bool:
        """Take the sample that is due; return whether the agent still runs."""
        if self.sampler is not None:
            self._server.put(self.sampler.take())
            if self._server.inbox:
                self._server.handle_due()
        return self._continues()

    def _continues(self) -> bool:
        if self._server.ending:
            self.sampler = None
            self._server.end_sampling()
        return not self._server.is_over()


def serve(control_descriptor: int = 0) -> int:
    """Serve the nodes that come over the control socket, until it is closed. Returns an exit status."""
    control = socket.socket(fileno=control_descriptor)
    agents: Dict[int, _SimulatedAgent] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)

        def handle_due(descriptor: int) -> None:
            if descriptor in agents and not agents[descriptor].handle_due():
                del agents[descriptor]

        while True:
            for key, _ in selector.select(_until_next(agents)):
                if key.data is not None:
                    key.data()
                    handle_due(key.fd)
                    continue
                received = _receive_node(control)
                if received is None:
                    return 0
                descriptor, simulation = received
                agents[descriptor] = _SimulatedAgent(descriptor, simulation, selector)
            now = time.monotonic_ns()
            for descriptor, agent in list(agents.items()):
                if agent.sampler is not None and agent.sampler.due <= now and not agent.sample():
                    del agents[descriptor]


def _until_next(agents: Dict[int, _SimulatedAgent]) -> Optional[float]:
    """Return the seconds to the next deadline of any node; None if none samples."""
    due = min((a.sampler.due for a in agents.values() if a.sampler is not None), default=None)
    return None if due is None else max(0.0, (due - time.monotonic_ns()) / 1e9)


def _receive_node(control: socket.socket) -> Optional[tuple[int, str]]:
    """Receive the next node's descriptor and simulation; None if the head needs no more."""
    data, descriptors, _, _ = socket.recv_fds(control, _CHUNK, 1)
    return (descriptors[0], data.decode()) if data and descriptors else None
