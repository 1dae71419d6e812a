"""Which nodes to watch: options, environment and Slurm brought together."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TextIO

from gswarm_tui.common.errors import UserError
from gswarm_tui.options.arguments import Options
from gswarm_tui.slurm import hosts
from gswarm_tui.slurm.jobs import Job, NoAnswerError, SlurmError, allocation


class JobSource(Protocol):
    """What is needed of Slurm; `gswarm_tui.slurm.jobs.Slurm` is the real one."""

    def job(self, job_id: str) -> Job:
        """A running job of the calling user."""

    def running_jobs(self) -> Sequence[str]:
        """The calling user's running jobs."""


@dataclass(frozen=True)
class Plan:
    """What will be watched.

    ``job`` is the Slurm job that the nodes belong to, None without one. ``allocation`` holds, for each of
    ``nodes`` of which it is known, the device minors of the job's GPUs; None where nothing is known.
    ``notice`` is a sentence about what couldn't be found out, for the events pane.
    """

    nodes: tuple[str, ...]
    job: Job | None = None
    allocation: Mapping[str, frozenset[int]] | None = None
    notice: str = ""


def resolve_nodes(options: Options, environ: Mapping[str, str], slurm: JobSource) -> Plan:
    """The nodes that ``options`` mean in this environment.

    Raises:
        UserError: none are named, they can't be read, or Slurm can't answer for the job.
    """
    if options.demo:
        from gswarm_tui.launch.simulated import simulated_names

        return Plan(tuple(simulated_names(options.demo.nodes)))
    job, notice = _job(options, environ, slurm)
    if options.launcher == "srun" and job is None:
        raise UserError("--launcher srun needs a job: add --job ID, or start inside salloc.")
    nodes = _nodes(options, job, slurm)
    if job is None:
        return Plan(nodes)
    in_job = _names_in(job, nodes)
    if options.job and (strangers := [node for node in nodes if node not in in_job]):
        raise UserError(
            f"job {job.label} doesn't have {hosts.fold(strangers)}; its nodes are {hosts.fold(job.nodes)}."
        )
    if not in_job:  # the shell's own job has nothing to do with the nodes that were named
        return Plan(nodes)
    known = {node: job.gpus[name] for node, name in in_job.items() if name in job.gpus}
    return Plan(nodes, job, known or None, notice)


def require_terminal(stdin: TextIO, stdout: TextIO) -> None:
    """Make sure that there is a terminal to draw on.

    Raises:
        UserError: standard input or output isn't one.
    """
    for name, stream in (("input", stdin), ("output", stdout)):
        if not stream.isatty():
            raise UserError(f"this draws on a terminal, and standard {name} isn't one; run it without pipes.")


def _job(options: Options, environ: Mapping[str, str], slurm: JobSource) -> tuple[Job | None, str]:
    """The job asked for or the one that this shell is in, and what couldn't be learned about it."""
    if options.job:
        try:
            return slurm.job(options.job), ""
        except NoAnswerError as error:
            remedy = "run this on a machine of the cluster, or name nodes with --nodes"
            raise UserError(f"--job {options.job}: {str(error).rstrip('.')}; {remedy}.") from None
    surrounding = allocation(environ)
    if surrounding is None:
        return None, ""
    try:
        told = slurm.job(surrounding.label)
    except SlurmError as error:
        return surrounding, f"Which GPUs belong to job {surrounding.label} isn't known: {error}"
    return dataclasses.replace(told, nodes=surrounding.nodes or told.nodes), ""


def _nodes(options: Options, job: Job | None, slurm: JobSource) -> tuple[str, ...]:
    if options.launcher == "local":
        return (socket.gethostname(),)
    if options.nodes is not None:
        if not (nodes := hosts.expand(options.nodes)):
            raise UserError("--nodes is there but names no node; is this shell inside salloc?")
        return nodes
    if job is not None and job.nodes:
        return job.nodes
    running = slurm.running_jobs()
    yours = f" (running now: {', '.join(running[:5])})" if running else ""
    raise UserError(
        f"no nodes are named: give --nodes gpu[01-04], or --job ID{yours}, or start inside salloc; "
        "--demo shows simulated ones."
    )


def _names_in(job: Job, nodes: Iterable[str]) -> dict[str, str]:
    """What the job calls those of ``nodes`` that it has: people add a domain or leave it out."""
    by_short = {_short(name): name for name in job.nodes} | {name: name for name in job.nodes}
    found = ((node, by_short.get(node) or by_short.get(_short(node))) for node in nodes)
    return {node: name for node, name in found if name}


def _short(node: str) -> str:
    return node.partition(".")[0]
