"""Starts the agent on this machine, from the head's own environment."""

from __future__ import annotations

import sys

from gswarm_tui.launch.bootstrap import Serving
from gswarm_tui.launch.process import ProcessChannel


class LocalLauncher:
    """Runs the agent on the head's own machine; see ``Launcher``. The node's name is only a name here."""

    def __init__(self, serving: Serving | None = None) -> None:
        self._serving = serving or Serving()

    async def open(self, node: str, *words: str) -> ProcessChannel:
        """Start the agent; see ``Asking`` for ``words``."""
        return await ProcessChannel.start(agent_command(*(words or self._serving.arguments(node))))

    async def close(self) -> None:
        """Nothing is shared."""


def agent_command(*arguments: str) -> list[str]:
    """The command that runs the head's own copy of the agent, without the current folder on its path."""
    return [sys.executable, "-P", "-m", "gswarm_agent", *arguments]
