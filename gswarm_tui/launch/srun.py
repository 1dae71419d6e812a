"""Starts agents as steps of the user's job, where SSH to the nodes is forbidden."""

from __future__ import annotations

import asyncio
import re

from gswarm_tui.launch.base import LaunchError, Retry, allow_many_files, check_name, clean, last_line
from gswarm_tui.launch.bootstrap import Bootstrap, GreetedChannel, greet
from gswarm_tui.launch.process import ProcessChannel

# Each step asks the controller, which serves the whole cluster.
STEPS_AT_ONCE = 16
# What srun adds when a task has ended, after what the task said itself.
_TASK_ENDED = re.compile(rb"^srun: (error: \S+: task \d+: .*|Terminating .*)\n", re.MULTILINE)


class SrunLauncher:
    """Starts each agent by an ``srun`` of its own, beside what runs in the job; see ``Launcher``.

    ``job_id`` is the allocation to start in. The step takes none of its resources (``--overlap``).
    """

    def __init__(self, job_id: str, bootstrap: Bootstrap | None = None) -> None:
        allow_many_files()
        self._job_id = job_id
        self._bootstrap = bootstrap or Bootstrap()
        self._starting = asyncio.Semaphore(STEPS_AT_ONCE)

    def command(self, node: str, *words: str) -> list[str]:
        """The argument list that runs the agent, or a command of it, on a node.

        All of a step ends with its tasks, so the one that starts the agent has to stay.
        """
        if not words:
            words = self._bootstrap.serving.arguments(node)
            words = (*words, "--hold") if "attach" in words else words
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
            *self._bootstrap.command(*words),
        ]

    async def open(self, node: str, *words: str) -> GreetedChannel:
        """Start a step with the agent on a node; see ``Asking`` for ``words``."""
        check_name(node)
        if not self._job_id.replace("_", "").replace("+", "").isalnum():
            raise LaunchError(f"{clean(self._job_id, 40)!r} is no job", "correct --job", Retry.NEVER)
        async with self._starting:
            channel = await ProcessChannel.start(self.command(node, *words))
            try:
                greeted = await greet(channel, self._bootstrap)
            except LaunchError as error:
                raise self._explain(error, channel.stderr()) from None
        # SIGTERM makes srun kill the step, and where only its first process is killed, its second does it.
        channel.leaves = not words and bool(self._bootstrap.serving.recording)
        return greeted

    def _explain(self, error: LaunchError, stderr: bytes) -> LaunchError:
        """What Slurm said in place of the status that it ended with; what the agent said is as good."""
        said = last_line(_TASK_ENDED.sub(b"", stderr))
        if error.remedy or not said:
            return error
        if not said.startswith("srun:"):
            return LaunchError(clean(f"the agent ended: {said}"))
        remedy = f"see whether the job still runs, with `squeue --jobs={self._job_id}`"
        return LaunchError(said, remedy, Retry.SLOWLY)

    async def close(self) -> None:
        """Nothing is shared."""
