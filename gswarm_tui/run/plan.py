"""Plan of a run: its nodes, job and GPUs, from options, environment and Slurm."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TextIO

from gswarm_agent.metrics import COUNTERS
from gswarm_tui.common.errors import UserError, printable
from gswarm_tui.options.arguments import Options
from gswarm_tui.slurm import hosts
from gswarm_tui.slurm.hostfile import read_hosts
from gswarm_tui.slurm.jobs import Job, Slurm, SlurmCommandError, SlurmError, allocation


class NoNodesError(UserError):
    """Raised if neither the command line nor a job names nodes."""


@dataclass(frozen=True)
class Plan:
    """Nodes to monitor.

    ``job`` is the Slurm job of the nodes, None without one. ``allocation`` has the device minors of the job's
    GPUs by node, as far as known. ``notice`` is a sentence for the events screen about what is unknown.
    ``source`` names the host file that the nodes come from, else it is empty.
    """

    nodes: tuple[str, ...]
    job: Job | None = None
    allocation: Mapping[str, frozenset[int]] | None = None
    notice: str = ""
    source: str = ""

    @property
    def label(self) -> str:
        """Label of the nodes' job, such as "job 4711"; empty for named nodes."""
        return self.source or (f"job {self.job.label}" if self.job else "")

    @property
    def job_id(self) -> str:
        """ID of the nodes' Slurm job, empty without one."""
        return self.job.label if self.job else ""

    @property
    def counters_refusal(self) -> str:
        """Why hardware counters aren't read, in one clause; empty for the nodes of an exclusive job.

        They count the processes of all users on a node.
        """
        job = self.job
        if job is not None and job.exclusive and _names_in(job, self.nodes).keys() >= set(self.nodes):
            return ""
        return (
            "hardware counters count all users' processes, so they are measured on the nodes of a running "
            "node-exclusive Slurm job only: request it with --exclusive; without Slurm, run perf stat"
        )


def title(label: str, nodes: Iterable[str]) -> str:
    """Return what nodes belong to and their names, for screens."""
    names = hosts.fold(nodes)
    return f"{label} · {names}" if label else names


def resolve_nodes(options: Options, environ: Mapping[str, str], slurm: Slurm | None = None) -> Plan:
    """Resolve the nodes from ``options`` and this environment.

    Raises UserError, also if hardware counters are requested in a job that isn't exclusive.
    """
    plan = _resolve(options, environ, slurm or Slurm())
    if COUNTERS in options.metrics and not options.demo and plan.counters_refusal:
        raise UserError(f"--metrics {COUNTERS}: {plan.counters_refusal}.")
    return plan


def _resolve(options: Options, environ: Mapping[str, str], slurm: Slurm) -> Plan:
    if options.demo:
        from gswarm_tui.launch.simulated import simulated_names

        return Plan(tuple(simulated_names(options.demo.nodes)))
    job, notice = _job(options, environ, slurm)
    if options.launcher == "srun" and job is None:
        raise UserError("--launcher srun needs a job: add --job ID, or start inside salloc.")
    nodes, source = _nodes(options, job)
    if job is None:
        return Plan(nodes, source=source)
    in_job = _names_in(job, nodes)
    if options.job and (strangers := [node for node in nodes if node not in in_job]):
        raise UserError(
            f"job {job.label} has no node {hosts.fold(strangers)}; its nodes are {hosts.fold(job.nodes)}."
        )
    if not in_job:  # the shell's own job has other nodes
        return Plan(nodes, source=source)
    known = {node: job.gpus[name] for node, name in in_job.items() if name in job.gpus}
    return Plan(nodes, job, known or None, notice, source)


def require_terminal(stdin: TextIO, stdout: TextIO) -> None:
    """Raise UserError unless standard input and output are a terminal."""
    for name, stream in (("input", stdin), ("output", stdout)):
        if not stream.isatty():
            raise UserError(f"the screen needs a terminal, but standard {name} isn't one; remove the pipe.")
    if os.environ.get("TERM") == "dumb":
        raise UserError("the screen needs a terminal that moves the cursor, but TERM is dumb; use another.")


def _job(options: Options, environ: Mapping[str, str], slurm: Slurm) -> tuple[Job | None, str]:
    """Return the named job or this shell's own, and a notice if Slurm knows too little of it."""
    if options.job:
        try:
            return slurm.job(options.job), ""
        except SlurmCommandError as error:
            remedy = "run this on a node of the cluster, or name nodes with --nodes"
            raise UserError(f"--job {options.job}: {str(error).rstrip('.')}; {remedy}.") from None
    surrounding = allocation(environ)
    if surrounding is None:
        return None, ""
    try:
        job = slurm.job(surrounding.label)
    except SlurmError as error:
        return surrounding, f"The GPUs of job {surrounding.label} are unknown: {error}"
    return dataclasses.replace(job, nodes=surrounding.nodes or job.nodes), ""


def _nodes(options: Options, job: Job | None) -> tuple[tuple[str, ...], str]:
    """Return the nodes, and the host file that names them; empty for --nodes and Slurm."""
    if options.launcher == "local":
        return (socket.gethostname(),), ""
    if options.nodes is not None:
        if not (nodes := hosts.expand(options.nodes)):
            raise UserError("--nodes names no node; is this shell inside salloc?")
        return nodes, ""
    if options.hostfile is not None:
        return read_hosts(options.hostfile), f"host file {printable(options.hostfile.name)}"
    if job is not None and job.nodes:
        return job.nodes, ""
    raise NoNodesError(
        "no nodes: use --nodes 'gpu[01-04]', --hostfile FILE or --job ID (squeue --me lists yours), or start "
        "inside a Slurm job, as with salloc; --demo simulates nodes."
    )


def _names_in(job: Job, nodes: Iterable[str]) -> dict[str, str]:
    """Map nodes to the job's names for them, with or without a domain; others are left out."""
    by_short = {hosts.short_name(name): name for name in job.nodes} | {name: name for name in job.nodes}
    found = ((node, by_short.get(node) or by_short.get(hosts.short_name(node))) for node in nodes)
    return {node: name for node, name in found if name}
