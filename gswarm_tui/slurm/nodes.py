"""Slurm's view of nodes, from ``scontrol show node -d --oneliner``."""

from __future__ import annotations

import re
from dataclasses import dataclass

# One line for each node. Fields stand at fixed places; OS and Reason are free text.
_NAME = re.compile(r"\ANodeName=(\S+) ")
_STATE = re.compile(r" State=(\S+) ")
_GRES = re.compile(r" Gres=(\S+) ")
_GRES_USED = re.compile(r" GresUsed=(\S+) ")
_REASON = re.compile(r" Reason=(.*?)(?: \[\S+@\S+\])?(?: (?:Comment|Extra|InstanceId)=.*)?\Z")
_GPUS = re.compile(r"(?:\A|,)gpu(?::[^:,()]+)?:([0-9]{1,6})(?=[(,]|\Z)")
_UNAVAILABLE = re.compile(r"DOWN|DRAIN|FAIL|MAINT|NOT_RESPONDING|POWERED_DOWN|REBOOT|UNKNOWN|\*")


@dataclass(frozen=True)
class SlurmNode:
    """Node as Slurm sees it; GPUs are None where it has no GPUs configured for the node."""

    name: str
    state: str
    reason: str | None
    gpus: int | None
    gpus_allocated: int | None

    @property
    def available(self) -> bool:
        """Whether jobs can start or run there."""
        return not _UNAVAILABLE.search(self.state)


def parse_nodes(text: str) -> dict[str, SlurmNode]:
    """Parse the output of ``scontrol show node -d --oneliner``; lines of another form are left out."""
    return {node.name: node for line in text.splitlines() if (node := _parse(line.strip()))}


def _parse(line: str) -> SlurmNode | None:
    name, state = _NAME.match(line), _STATE.search(line)
    if name is None or state is None:
        return None
    reason, gres, used = _REASON.search(line), _GRES.search(line), _GRES_USED.search(line)
    gpus = _count(gres[1] if gres else "")
    return SlurmNode(
        name=name[1],
        state=state[1],
        reason=reason[1].strip() or None if reason else None,
        gpus=gpus,
        gpus_allocated=None if gpus is None else _count(used[1] if used else ""),
    )


def _count(gres: str) -> int | None:
    counts = [int(count) for count in _GPUS.findall(gres)]
    return sum(counts) if counts else None
