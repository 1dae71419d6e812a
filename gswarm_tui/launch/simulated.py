"""Starts simulated nodes on this machine: the same agent, wire and link as for real ones."""

from __future__ import annotations

import json
import time
from dataclasses import asdict

from gswarm_agent.simulated import Simulation
from gswarm_tui.launch.base import LaunchError, Retry
from gswarm_tui.launch.local import agent_command
from gswarm_tui.launch.process import ProcessChannel


def simulated_names(nodes: int) -> list[str]:
    """Names for simulated nodes: sim01, sim02 …, wide enough to sort."""
    width = max(2, len(str(nodes)))
    return [f"sim{index:0{width}d}" for index in range(1, nodes + 1)]


class SimulatedLauncher:
    """Serves synthetic nodes, called as in ``simulated_names``, of ``gpus`` GPUs each; see ``Launcher``."""

    def __init__(self, nodes: int, gpus: int, seed: int = 1) -> None:
        origin_ns = time.monotonic_ns()
        self._simulations = {
            name: Simulation(name, index, nodes, gpus, seed, origin_ns)
            for index, name in enumerate(simulated_names(nodes))
        }

    async def open(self, node: str) -> ProcessChannel:
        """Start a simulated node, or start it again."""
        simulation = self._simulations.get(node)
        if simulation is None:
            raise LaunchError("there is no such simulated node", retry=Retry.NEVER)
        command = agent_command("stream", "--simulate", json.dumps(asdict(simulation)))
        return await ProcessChannel.start(command)

    async def close(self) -> None:
        """Nothing is shared."""
