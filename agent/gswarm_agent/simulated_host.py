"""Many simulated nodes in one process, so that a fleet of a thousand fits on a laptop.

Standard input is a unix socket on which the head sends a descriptor for each node, with the node's
simulation as JSON; on that descriptor the node speaks the wire as any agent does. One thread serves all.
"""

from __future__ import annotations

import array
import selectors
import socket
import time
from typing import Dict, Optional

from gswarm_agent.sampler import Sampler
from gswarm_agent.simulated import SimulatedNode, parse_simulation
from gswarm_agent.stream import Conversation, Outbox
from gswarm_agent.wire import MAGIC, Bye

_CHUNK = 65536


class _Node:
    """One simulated node on its connection."""

    def __init__(self, connection: socket.socket, simulation: str) -> None:
        self.connection = connection
        self.sampler: Optional[Sampler] = None
        self._probe = SimulatedNode(parse_simulation(simulation))
        self._outbox = Outbox()
        self._conversation = Conversation(self._outbox)
        self._unsent = memoryview(MAGIC)

    def receive(self) -> None:
        """Take in what the head sent."""
        try:
            self._conversation.receive(self.connection.recv(_CHUNK))
        except OSError:
            self._conversation.end("the head is gone")
        if self._conversation.ended is not None:
            self.sampler = None
            self._outbox.close(Bye(self._conversation.ended))
        elif self.sampler is None and self._conversation.started.is_set():
            self.sampler = self._conversation.introduce(self._probe, simulated=True)

    def sample(self) -> None:
        """Take the sample that is due."""
        if self.sampler is not None:
            self._outbox.put_frame(self.sampler.take())

    def send(self) -> int:
        """Send what can be sent; the selector's events to wait for, 0 when this node has ended."""
        try:
            while True:
                if not self._unsent:
                    self._unsent = memoryview(self._outbox.take())
                    if not self._unsent:
                        return 0 if self._outbox.closed else selectors.EVENT_READ
                self._unsent = self._unsent[self.connection.send(self._unsent) :]
        except BlockingIOError:
            return selectors.EVENT_READ | selectors.EVENT_WRITE
        except OSError:
            return 0


def serve(control_descriptor: int = 0) -> int:
    """Serve the nodes that come over the control socket, until it is closed. Returns an exit status."""
    control = socket.socket(fileno=control_descriptor)
    nodes: Dict[int, _Node] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)

        def attend(node: _Node) -> None:
            wanted = node.send()
            if wanted:
                selector.modify(node.connection, wanted, node)
            else:
                selector.unregister(node.connection)
                del nodes[node.connection.fileno()]
                node.connection.close()

        while True:
            for key, events in selector.select(_until_next(nodes)):
                node = key.data
                if node is None:
                    node = _accept(control)
                    if node is None:
                        return 0
                    nodes[node.connection.fileno()] = node
                    selector.register(node.connection, selectors.EVENT_READ, node)
                elif events & selectors.EVENT_READ:
                    node.receive()
                attend(node)
            now = time.monotonic_ns()
            for node in [n for n in nodes.values() if n.sampler is not None and n.sampler.due <= now]:
                node.sample()
                attend(node)


def _until_next(nodes: Dict[int, _Node]) -> Optional[float]:
    """Seconds to the next deadline of any node; None where none samples."""
    due = min((n.sampler.due for n in nodes.values() if n.sampler is not None), default=None)
    return None if due is None else max(0.0, (due - time.monotonic_ns()) / 1e9)


def _accept(control: socket.socket) -> Optional[_Node]:
    """The next node that the head wants; None when it wants no more."""
    descriptors = array.array("i")
    data, ancillary, _, _ = control.recvmsg(_CHUNK, socket.CMSG_SPACE(descriptors.itemsize))
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content[: descriptors.itemsize])
    if not data or not descriptors:
        return None
    connection = socket.socket(fileno=descriptors[0])
    connection.setblocking(False)
    return _Node(connection, data.decode())
