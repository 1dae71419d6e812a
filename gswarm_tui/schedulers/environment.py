"""Nodes of the job that this shell runs in, from the variables of PBS, LSF, SGE, OAR and Flux.

docs/guide/schedulers.md lists the variables and links to their documentation.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gswarm_tui.common.errors import UserError, printable
from gswarm_tui.common.processes import run_program
from gswarm_tui.schedulers.hostfile import read_hosts
from gswarm_tui.slurm import hosts

_FLUX_S = 10.0
_NAME_NODES = "name nodes with --nodes or --hostfile"


@dataclass(frozen=True)
class JobNodes:
    """Nodes of a job, its label such as "PBS job 12.head", and the variable that led to them."""

    nodes: tuple[str, ...]
    label: str
    variable: str


@dataclass(frozen=True)
class _Source:
    """Variable of a scheduler: how its nodes are read, and the variable with the job's ID."""

    scheduler: str
    variable: str
    read: Callable[[str, Mapping[str, str]], tuple[str, ...]]
    job_id: str


def job_nodes(environ: Mapping[str, str]) -> JobNodes | None:
    """Return the nodes of this shell's job; None outside of one. Raises UserError if they can't be read."""
    for source in _SOURCES:
        if environ.get(source.variable):
            nodes = source.read(source.variable, environ)
            if not nodes:
                raise UserError(f"{source.variable} names no host; {_NAME_NODES}.")
            label = f"{source.scheduler} job {environ.get(source.job_id, '')}".rstrip()
            return JobNodes(nodes, printable(label), source.variable)
    return None


def _file(variable: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    return read_hosts(Path(environ[variable]), first_column=True, named_by=variable)


def _lsf(variable: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the hosts without a launch node: the first, with one slot, if all others have several alike."""
    nodes = _file(variable, environ)
    words = Path(environ[variable]).read_text("utf-8", "replace").split()
    first, *slots = map(words.count, nodes)
    return nodes[1:] if first == 1 and len(set(slots)) == 1 and slots[0] > 1 else nodes


def _flux(variable: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return what ``flux hostlist local`` prints: the hosts of the job, else of the instance."""
    try:
        done = run_program(["flux", "hostlist", "local"], environ, timeout_s=_FLUX_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{variable} is set, but flux can't be run: {error}; {_NAME_NODES}.") from None
    if done.returncode != 0:
        last = (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
        raise UserError(f"flux hostlist failed: {printable(last).rstrip('.')}; {_NAME_NODES}.")
    return hosts.expand([done.stdout], "flux hostlist local")


_SOURCES = (
    _Source("PBS", "PBS_NODEFILE", _file, "PBS_JOBID"),
    _Source("LSF", "LSB_DJOB_HOSTFILE", _lsf, "LSB_JOBID"),
    _Source("OAR", "OAR_NODEFILE", _file, "OAR_JOB_ID"),
    _Source("SGE", "PE_HOSTFILE", _file, "JOB_ID"),
    _Source("Flux", "FLUX_URI", _flux, "FLUX_JOB_ID"),
)
"""Flux is last: its instances also run inside jobs of other schedulers."""
