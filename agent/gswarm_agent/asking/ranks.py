"""The job's ranks on this node as /proc shows them; to look at them costs the job nothing."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

from gswarm_agent.probes.procfs import parse_process_stat, parse_process_uid, parse_ranks, read_file
from gswarm_agent.probes.software import read_software

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Collection, Dict, List, Optional

_TORCH = b"/torch/lib/libtorch_cpu.so"
_COMPUTES = (_TORCH, b"/libnccl.so", b"/libmpi.so", b"/libcuda.so", b"/bin/python")
"""Mapped files that a rank has, and its shells and launchers mostly haven't."""
_KEPT = ("KINETO_", "TORCH_", "NCCL_RAS_", "SLURM_JOB_ID", "MASTER_PORT")
"""Beginnings of the variables that steps need; no others are kept."""


@dataclass(frozen=True)
class LocalRank:
    """A process of this user that has a rank; ``environ`` has the variables that steps need.

    ``torch`` is whether it uses PyTorch, ``computes`` whether it seems to be no shell, ``of_torchrun``
    whether PyTorch's own variable has the rank. ``started`` is in clock ticks since boot.
    """

    pid: int
    rank: int
    world_size: Optional[int]
    environ: Dict[str, str]
    torch: bool = False
    computes: bool = False
    of_torchrun: bool = False
    started: int = 0
    state: str = ""


def find_ranks(job: Dict[str, str], proc: str = "/proc") -> List[LocalRank]:
    """Return this user's processes with a rank in a job. May hang with a process.

    ``job`` has variables by which to know its processes, the surest first; if none has them, all count.
    torchrun, which Slurm gives a rank, too, uses PyTorch, but only its children have PyTorch's variable:
    where a process has it, others don't count.
    """
    pids = [int(name) for name in os.listdir(proc) if name.isdigit()]  # noqa: PTH208
    ranks = read_ranks(pids, proc)
    for name, value in job.items():
        if known := [one for one in ranks if value and one.environ.get(name) == value]:
            ranks = known
            break
    return [one for one in ranks if one.of_torchrun] or ranks


def read_ranks(pids: Collection[int], proc: str = "/proc") -> List[LocalRank]:
    """Return those of some processes that are this user's and have a rank. May hang with a process."""
    found = []
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):
            found.append(_read_rank(f"{proc}/{pid}", pid))
    return [one for one in found if one is not None]


def _read_rank(folder: str, pid: int) -> Optional[LocalRank]:
    if parse_process_uid(read_file(f"{folder}/status")) != os.geteuid():
        return None
    environ = read_file(f"{folder}/environ")
    rank, _local_rank, world_size = parse_ranks(environ)
    if rank is None:
        return None
    values = dict(os.fsdecode(entry).partition("=")[::2] for entry in environ.split(b"\0"))
    kept = {name: value for name, value in values.items() if name.startswith(_KEPT)}
    maps = read_file(f"{folder}/maps")
    stat = parse_process_stat(read_file(f"{folder}/stat"))
    computes = any(name in maps for name in _COMPUTES)
    what = _TORCH in maps, computes, "RANK" in values
    return LocalRank(pid, rank, world_size, kept, *what, stat.started, stat.state)


def choose(found: List[LocalRank], gpu_pids: Collection[int]) -> List[LocalRank]:
    """Return one process of each rank: those on a GPU, else the oldest that computes.

    A rank's shells and launchers have its variables, too, and so have its workers, which it starts later.
    """

    def preference(one: LocalRank) -> Any:
        return one.pid not in gpu_pids, not one.torch, not one.computes, one.started, one.pid

    on_gpus = [one for one in found if one.pid in gpu_pids]
    chosen: Dict[int, LocalRank] = {}
    for one in sorted(on_gpus or found, key=preference):
        chosen.setdefault(one.rank, one)
    computing = [one for one in chosen.values() if one.pid in gpu_pids or one.torch] or list(chosen.values())
    return sorted(computing, key=lambda one: one.rank)


def ask(request: Dict[str, Any]) -> Dict[str, Any]:
    """Return this node's addresses and the ranks of a job. ``gpu_pids`` are the processes on its GPUs."""
    ranks = []
    for one in choose(find_ranks(request.get("job", {})), request.get("gpu_pids", ())):
        with suppress(OSError):
            software = read_software(read_file(f"/proc/{one.pid}/maps"), f"/proc/{one.pid}/root")
            ranks.append(
                {
                    "pid": one.pid,
                    "rank": one.rank,
                    "world_size": one.world_size,
                    "state": one.state,
                    "framework": software.framework,
                    "nccl": software.nccl,
                    "ras": one.environ.get("NCCL_RAS_ADDR", ""),
                }
            )
    return {"addresses": _addresses(), "ranks": ranks}


def _addresses() -> List[str]:
    """Return the IP addresses of this node, as the kernel's tables have them."""
    import ipaddress

    found = set()
    with suppress(OSError):
        before = ""
        for line in read_file("/proc/net/fib_trie").decode().splitlines():
            if line.endswith("/32 host LOCAL"):
                found.add(before)
            before = line.rpartition(" ")[2]
    with suppress(OSError):
        for line in read_file("/proc/net/if_inet6").decode().splitlines():
            found.add(str(ipaddress.ip_address(bytes.fromhex(line.split()[0]))))
    return sorted(found)
