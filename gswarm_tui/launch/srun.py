"""Starts agents as steps of the user's job, where SSH to the nodes is forbidden."""

from __future__ import annotations

import asyncio

from gswarm_tui.launch.base import LaunchError, Retry, allow_many_files, check_name, clean
from gswarm_tui.launch.bootstrap import Bootstrap, GreetedChannel, greet
from gswarm_tui.launch.process import ProcessChannel

# Each step asks the controller, which serves the whole cluster.
STEPS_AT_ONCE = 16


class SrunLauncher:
    """Starts each agent by an ``srun`` of its own, beside what runs in the job; see ``Launcher``.

    ``job_id`` is the allocation to start in. The step takes none of its resources (``--overlap``).
    """

    def __init__(self, job_id: str, bootstrap: Bootstrap | None = None) -> None:
        allow_many_files()
        self._job_id = job_id
        self._bootstrap = bootstrap or Bootstrap()
        self._starting = asyncio.Semaphore(STEPS_AT_ONCE)

    def command(self, node: str) -> list[str]:
        """The argument list that runs the agent on a node."""
        return [
            "srun",
            f"--jobid={self._job_id}",
            f"--nodelist={node}",
            "--nodes=1",
            "--ntasks=1",
            "--overlap",
            "--unbuffered",
            "--quiet",
            "--job-name=gswarm-tui",
            "--input=all",
            *self._bootstrap.command("stream"),
        ]

    async def open(self, node: str) -> GreetedChannel:
        """Start a step with the agent on a node."""
        check_name(node)
        if not self._job_id.replace("_", "").replace("+", "").isalnum():
            raise LaunchError(f"{clean(self._job_id, 40)!r} is no job", "correct --job", Retry.NEVER)
        async with self._starting:
            channel = await ProcessChannel.start(self.command(node))
            return await greet(channel, self._bootstrap)

    async def close(self) -> None:
        """Nothing is shared."""
