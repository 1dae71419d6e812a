"""Ballast for frames: many processes with long command lines on a node's GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.node import ClusterNode
from tests.cluster.standin.scenario import GpuProcess, Scenario

PROCESSES = 60
_START = (
    "long=$(printf 'step %.0s' {1..700}); "
    f"for n in {{1..{PROCESSES}}}; do "
    '(exec -a "train $long" sleep 3600 </dev/null >/dev/null 2>&1) & echo $!; done'
)


@contextmanager
def ballast(node: ClusterNode) -> Iterator[None]:
    """Run the processes while the context lasts: about 100 KB a second more."""
    pids = [int(pid) for pid in node.run(_START).stdout.split()]
    try:
        scenario = Scenario.of(node.name, node.gpus)
        for index, pid in enumerate(pids):
            scenario.gpus[index % node.gpus].processes.append(GpuProcess(pid=pid, used_mib=1))
        scenario.write(node.scenario)
        yield
    finally:
        Scenario.of(node.name, node.gpus).write(node.scenario)
        node.run(["kill", "-KILL", *map(str, pids)], check=False)
