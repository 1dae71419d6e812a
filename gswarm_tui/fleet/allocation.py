"""Which of a node's GPUs Slurm gave to the job, by the indices that Slurm prints.

These follow device minors or the PCI order (that of a node's GPUs here), depending on gres.conf, and MIG
instances have indices, too. An agent in the job's device cgroup sees only the job's GPUs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gswarm_agent.frame import GpuFacts

UNKNOWN_GPUS = "can't tell which GPUs are the job's, so none counts: MIG is on, or minors aren't in PCI order"
SEE_OWN_GPUS = "start with --launcher srun: where Slurm limits devices, agents in the job see its GPUs only"


def are_unknown(gpus: Sequence[GpuFacts], granted: Collection[int] | None) -> bool:
    """Return whether some of a node's GPUs are the job's and Slurm's indices don't say which."""
    if not granted or _sees_own(gpus, granted):
        return False
    return any(gpu.mig or gpu.minor not in (None, gpu.index) for gpu in gpus)


def own_gpus(gpus: Sequence[GpuFacts], granted: Collection[int] | None) -> tuple[bool, ...]:
    """Return for each GPU of a node whether it is certainly the job's; all are without an allocation."""
    if granted is None or _sees_own(gpus, granted):
        return (True,) * len(gpus)
    unknown = are_unknown(gpus, granted)
    return tuple(gpu.index in granted and not unknown for gpu in gpus)


def _sees_own(gpus: Sequence[GpuFacts], granted: Collection[int]) -> bool:
    """Return whether the agent sees no more than was granted; Slurm grants instances of divided GPUs."""
    divided = {gpu.parent_index for gpu in gpus}
    units = [gpu for gpu in gpus if gpu.index not in divided]
    # A divided GPU whose instances can't be listed may hold any number of them.
    return len(units) <= len(granted) and not any(gpu.mig and gpu.parent_index is None for gpu in units)
