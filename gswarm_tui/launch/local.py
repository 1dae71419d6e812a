"""Launches the agent on this machine, from the recorder's own environment."""

from __future__ import annotations

import sys

from gswarm_tui.launch.base import Launcher
from gswarm_tui.launch.bootstrap import Serving
from gswarm_tui.launch.process import ProcessChannel


class LocalLauncher(Launcher):
    """Runs the agent on the recorder's own machine, whatever the node's name is; see ``Launcher``."""

    def __init__(self, serving: Serving | None = None) -> None:
        self._serving = serving or Serving()

    async def open(self, node: str, *arguments: str) -> ProcessChannel:
        """Start the agent; see ``Launcher``."""
        return await ProcessChannel.start(agent_command(*(arguments or self._serving.arguments(node))))


def agent_command(*arguments: str) -> list[str]:
    """Return the command of the recorder's own agent, without the current folder on its path."""
    return [sys.executable, "-P", "-m", "gswarm_agent", *arguments]
