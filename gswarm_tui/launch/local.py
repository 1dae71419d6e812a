"""Starts the agent on this machine, from the head's own environment."""

from __future__ import annotations

import sys

from gswarm_tui.launch.process import ProcessChannel


class LocalLauncher:
    """Runs the agent as a child of the head; see ``Launcher``. The node's name is only a name here."""

    async def open(self, node: str) -> ProcessChannel:
        """Start the agent; ``node`` may be anything."""
        return await ProcessChannel.start(agent_command("stream"))

    async def close(self) -> None:
        """Nothing is shared."""


def agent_command(*arguments: str) -> list[str]:
    """The command that runs the head's own copy of the agent, without the current folder on its path."""
    return [sys.executable, "-P", "-m", "gswarm_agent", *arguments]
