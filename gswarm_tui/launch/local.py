"""Launches the agent on this machine, from the head's own environment."""

from __future__ import annotations

import sys

from gswarm_tui.launch.base import CommandLauncher
from gswarm_tui.launch.bootstrap import Serving
from gswarm_tui.launch.process import ProcessChannel


class LocalLauncher(CommandLauncher):
    """Runs the agent on the head's own machine, whatever the node's name is; see ``Launcher``."""

    def __init__(self, serving: Serving | None = None) -> None:
        self._serving = serving or Serving()

    async def open(self, node: str, *arguments: str) -> ProcessChannel:
        """Start the agent; see ``CommandLauncher``."""
        return await ProcessChannel.start(agent_command(*(arguments or self._serving.arguments(node))))

    async def close(self) -> None:
        """Do nothing: no connection is shared."""


def agent_command(*arguments: str) -> list[str]:
    """Return the command of the head's own agent, without the current folder on its path."""
    return [sys.executable, "-P", "-m", "gswarm_agent", *arguments]
