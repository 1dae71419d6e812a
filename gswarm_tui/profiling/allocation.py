"""The nodes of a profile or trial: those of a running job, or for a profile of an allocation of its own."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from gswarm_tui.common.errors import print_notice
from gswarm_tui.profiling.slurm_commands import KeptCommand, ProfileError, kept, last_line, with_errors
from gswarm_tui.slurm.jobs import Job, Slurm, SlurmError

_REPLY_S = 30.0
"""Longest reply of Slurm: a controller that is slow for a moment mustn't end a job that waited for hours."""
_PENDING = re.compile(r"salloc: Pending job allocation (\d+)")
_GRANTED = re.compile(r"GSWARM-GRANTED (\d{1,10}) ([A-Za-z0-9+/=]*)")
_LONGEST_LINE = 1 << 22
# The variables that salloc sets decide how its user's srun starts tasks, so srun gets them here, too.
_GRANTED_COMMAND = (
    "echo GSWARM-GRANTED $SLURM_JOB_ID $(env -0 | grep -z '^SLURM_' | base64 -w0); exec sleep infinity"
)


@dataclass(frozen=True)
class Allocation:
    """Nodes of a job on which steps can be started, and the variables for ``srun``."""

    job: Job
    environ: Mapping[str, str] = field(default_factory=dict)

    def step(self, *options: str) -> list[str]:
        """Return the beginning of a command that runs a step, beside others that run."""
        variables = [f"{name}={value}" for name, value in self.environ.items()]
        group = self.job.het_groups.get(self.job.nodes[0])
        component = [] if group is None else [f"--het-group={group}"]
        job = [f"--jobid={self.job.job_id}", *component]
        return ["env", *variables, "srun", *job, "--overlap", "--quiet", *options]


async def find_job(job_id: str, environ: Mapping[str, str] | None = None) -> Allocation:
    """Return the nodes of a running job of the user. Raises ProfileError.

    Of a heterogeneous job these are the nodes of the first component, as a step of srun runs in one.
    """
    try:
        job = await asyncio.to_thread(Slurm(timeout_s=_REPLY_S).job, job_id)
    except SlurmError as error:
        raise ProfileError(str(error)) from None
    group = job.het_groups.get(job.nodes[0])
    nodes = tuple(node for node in job.nodes if job.het_groups.get(node) == group)
    gpus = {node: minors for node, minors in job.gpus.items() if node in nodes}
    return Allocation(replace(job, nodes=nodes, gpus=gpus), environ or {})


@asynccontextmanager
async def allocated(options: Sequence[str]) -> AsyncIterator[Allocation]:
    """Allocate nodes for the time of the context; a notice names the job if it waits.

    Raises ProfileError if Slurm denies it.
    """
    salloc = ["salloc", "--kill-command=TERM", "--job-name=gswarm-profile", *options]
    async with kept(with_errors([*salloc, "bash", "-c", _GRANTED_COMMAND]), grace_s=0) as command:
        job_id, environ = await _granted(command)
        yield await find_job(job_id, environ)


async def _granted(command: KeptCommand) -> tuple[str, dict[str, str]]:
    """Wait for the allocation; return the job's id and the variables of its shell. Raises ProfileError."""
    text, error = "", ""
    while data := await command.read():
        *lines, text = (text + data.decode("utf-8", "replace")).split("\n")
        if len(text) > _LONGEST_LINE:
            raise ProfileError("salloc prints a line without end; run it by hand to see why.")
        for line in lines:
            if granted := _GRANTED.fullmatch(line):
                pairs = base64.b64decode(granted[2] + "==").decode("utf-8", "surrogateescape").split("\0")
                return granted[1], dict(pair.split("=", 1) for pair in pairs if "=" in pair)
            if found := _PENDING.match(line):
                print_notice(f"job {found[1]} waits for nodes; squeue --jobs={found[1]} shows why")
            if "error: " in line or "unrecognized" in line or "invalid" in line:
                error = line
    if await command.wait() == 127:
        raise ProfileError(
            "salloc isn't on your PATH; run this on a login node of the cluster, or name one with --jump."
        )
    raise ProfileError(f"Slurm denied the allocation{last_line(error)}.")
