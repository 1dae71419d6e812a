"""Launches simulated nodes on this machine, with the same agent, wire and link as for real ones."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import asdict

from gswarm_agent.simulated import Simulation
from gswarm_tui.launch.base import Channel, Launcher, LaunchError, Retry, allow_many_files, clean
from gswarm_tui.launch.local import agent_command
from gswarm_tui.launch.process import ProcessChannel

_MOST_PROCESSES = 8
_PIECE = 256 * 1024
# The simulated job is past its warm-up when it is first seen.
_UNDER_WAY_NS = 40 * 10**9


def simulated_names(nodes: int) -> list[str]:
    """Return the names of simulated nodes: sim01, sim02 …, wide enough to sort."""
    width = max(2, len(str(nodes)))
    return [f"sim{index:0{width}d}" for index in range(1, nodes + 1)]


class SimulatedLauncher(Launcher):
    """Starts simulated nodes with ``gpus`` GPUs each, named by ``simulated_names``; see ``Launcher``.

    A few processes serve all nodes; they start with the first node.
    """

    def __init__(self, nodes: int, gpus: int, seed: int = 1) -> None:
        origin_ns = time.monotonic_ns() - _UNDER_WAY_NS
        self._simulations = {
            name: Simulation(name, index, nodes, gpus, seed, origin_ns)
            for index, name in enumerate(simulated_names(nodes))
        }
        self._most = min(nodes, os.cpu_count() or 1, _MOST_PROCESSES)
        self._processes: list[tuple[socket.socket, ProcessChannel]] = []
        self._starting = asyncio.Lock()
        allow_many_files()

    async def open(self, node: str, *arguments: str) -> Channel:
        """Start or restart a simulated node, which gets its socket over its process's; it has no commands."""
        simulation = self._simulations.get(node)
        if simulation is None:
            raise LaunchError(f"{clean(node, 60)!r} isn't a simulated node", retry=Retry.NEVER)
        async with self._starting:
            while len(self._processes) < self._most:
                control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with theirs:
                    process = await ProcessChannel.start(agent_command("simulate"), theirs.fileno())
                self._processes.append((control, process))
        control, _ = self._processes[simulation.index % self._most]
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(control, [json.dumps(asdict(simulation)).encode()], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise LaunchError(f"the simulation ended: {error.strerror}") from None
        return SimulatedChannel(*await asyncio.open_connection(sock=ours))

    async def close(self) -> None:
        """End the processes, which end by themselves when their control sockets close."""
        for control, _ in self._processes:
            control.close()
        await asyncio.gather(*(process.close() for _, process in self._processes))
        self._processes.clear()


class SimulatedChannel(Channel):
    """The socket of a simulated node; see ``Channel``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self) -> bytes:
        """Return the next bytes, empty when the node has ended. Raises ConnectionError."""
        return await self._reader.read(_PIECE)

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if not self._writer.is_closing():
            self._writer.write(data)

    async def explain_end(self) -> str:
        """Return the only known reason."""
        return "the simulated node ended"

    async def close(self) -> None:
        """Close the socket; the node ends."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()
