"""Launches agents as steps of the user's job, for clusters that forbid SSH to nodes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Collection, Mapping

from gswarm_tui.launch.base import (
    Launcher,
    LaunchError,
    LaunchStep,
    Retry,
    allow_many_files,
    check_name,
    clean,
    last_line,
)
from gswarm_tui.launch.bootstrap import SHELL, Bootstrap, greet
from gswarm_tui.launch.process import ProcessChannel

# Each step asks the controller, which serves the whole cluster.
STEPS_AT_ONCE = 16
SLOT_S = 10.0
"""A step that takes longer to start no longer counts: other nodes must not wait for one that hangs."""
_KEPT = frozenset({"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT"})
# Lines that srun adds after the task's own output when the task has ended.
_TASK_ENDED = re.compile(rb"^srun: (error: \S+: task \d+: .*|Terminating .*)\n", re.MULTILINE)


class SrunLauncher(Launcher):
    """Starts each agent by an ``srun`` of its own, beside the job's own steps; see ``Launcher``.

    ``job_id`` is the allocation to start in, and ``het_groups`` has each node's component of a heterogeneous
    job. A step requests the ``gpus`` of its node, without them those that Slurm chooses. It takes none of
    the job's resources (``--overlap``).
    """

    def __init__(
        self,
        job_id: str,
        bootstrap: Bootstrap | None = None,
        gpus: Mapping[str, Collection[int]] | None = None,
        het_groups: Mapping[str, int] | None = None,
    ) -> None:
        allow_many_files()
        self._job_id = job_id
        self._gpus = gpus or {}
        self._het_groups = het_groups or {}
        self._bootstrap = bootstrap or Bootstrap()
        self._starting = asyncio.Semaphore(STEPS_AT_ONCE)

    def command(self, node: str) -> list[str]:
        """Return the argument list that runs a shell on a node."""
        group = self._het_groups.get(node)
        gpus = self._gpus.get(node)
        return [
            "srun",
            f"--jobid={self._job_id}",
            *(() if group is None else (f"--het-group={group}",)),
            *(() if gpus is None else (f"--gpus={len(gpus)}",)),
            *(f"--nodelist={node}", "--nodes=1", "--ntasks=1", "--overlap", "--mpi=none"),
            *("--unbuffered", "--quiet", "--job-name=gswarm-tui", "--input=all", SHELL),
        ]

    async def open(self, node: str, *arguments: str) -> ProcessChannel:
        """Start a step with the agent on a node; see ``Launcher``."""
        check_name(node)
        if not self._job_id.replace("_", "").replace("+", "").isalnum():
            raise LaunchError(f"{clean(self._job_id, 40)!r} isn't a job ID", "correct --job", Retry.NEVER)
        agent = self._bootstrap.serving.arguments(node)
        # Slurm ends all processes of a step with its tasks, so the task that starts the agent has to stay.
        agent = (*agent, "--hold") if "attach" in agent else agent
        with contextlib.ExitStack() as slot:
            await self._starting.acquire()
            slot.callback(self._starting.release)
            channel = await ProcessChannel.start(self.command(node), environ=_environ())
            freeing = asyncio.get_running_loop().call_later(SLOT_S, slot.close)
            slot.callback(freeing.cancel)
            try:
                await greet(channel, self._bootstrap, arguments or agent, "its job step")
            except LaunchError as error:
                raise self._explain(error, channel.stderr()) from None
        # SIGTERM makes srun kill the step, and where only its first process is killed, its second does it.
        channel.leaves_agent = not arguments and bool(self._bootstrap.serving.recording)
        return channel

    def _explain(self, error: LaunchError, stderr: bytes) -> LaunchError:
        """Return an error with srun's or the agent's last line instead of an exit status."""
        line = last_line(_TASK_ENDED.sub(b"", stderr))
        if error.remedy or not line:
            return error
        if not line.startswith("srun:"):
            return LaunchError(clean(f"the agent ended: {line}"))
        remedy = f"check that the job still runs, with `squeue --jobs={self._job_id}`"
        return LaunchError(line, remedy, Retry.SLOWLY, LaunchStep.CONNECT)


def _environ() -> dict[str, str]:
    """Return the environment without the options of srun that a job or its user set for other steps.

    ``sbatch --export=NONE``, for example, sets SLURM_EXPORT_ENV, with which a step has no PATH.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or not name.startswith(("SLURM_", "SRUN_"))
    }
