"""What a recording knows so far: its nodes, their GPUs, their links and the sessions. Pure, no DuckDB.

Each thing is the row it has in the database. The recorder works on a copy while it prepares a transaction
and keeps the copy when the transaction is committed.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gswarm_agent.frame import GpuFacts, Hello
from gswarm_tui.fleet.events import Phase

Row = dict[str, Any]
"""One row of a table by column; times are Unix microseconds."""


@dataclass
class KnownNode:
    """A node of the recording, with the rows that stand for it now and how its frames are to be read."""

    row: Row
    link: Row
    gpus: tuple[GpuFacts, ...] = ()
    gpu_ids: tuple[int, ...] = ()
    gpu_columns: tuple[str, ...] = ()
    host_columns: tuple[str, ...] = ()
    process_columns: tuple[str, ...] = ()
    last_seq: dict[str, int] = field(default_factory=dict)
    last_ts_ns: int = 0
    lives: int = 0
    phase: Phase | None = None

    @property
    def node_id(self) -> int:
        """The node's number in the file."""
        return int(self.row["node_id"])

    def gpu_id(self, index: int | None) -> int | None:
        """The number of the GPU with this NVML index, None if there is none."""
        return next((i for g, i in zip(self.gpus, self.gpu_ids, strict=True) if g.index == index), None)

    def is_machine(self, hello: Hello) -> bool:
        """Whether the hello comes from the boot and the GPUs of this row."""
        uuids = [gpu.uuid for gpu in self.gpus]
        return bool(self.row["boot_id"] == hello.host.boot_id and uuids == [gpu.uuid for gpu in hello.gpus])


@dataclass
class Ledger:
    """Nodes by name, sessions by the id that the head gave them, and the next free numbers of the file.

    ``allocation`` holds, for each node of which it is known, the device minors of the job's GPUs.
    """

    recording_id: int
    next_node: int
    next_gpu: int
    next_session: int
    allocation: Mapping[str, frozenset[int]] = field(default_factory=dict)
    nodes: dict[str, KnownNode] = field(default_factory=dict)
    sessions: dict[str, Row] = field(default_factory=dict)

    def draft(self) -> Ledger:
        """A copy to work on; take nodes out of it by ``own``."""
        return Ledger(
            self.recording_id,
            self.next_node,
            self.next_gpu,
            self.next_session,
            self.allocation,
            dict(self.nodes),
            dict(self.sessions),
        )

    def own(self, name: str) -> KnownNode:
        """A node that may be changed: a copy put in its place, or a new one if it wasn't known."""
        known = self.nodes.get(name)
        if known is None:
            node = self._new_node(name)
        else:
            node = copy.copy(known)
            node.row, node.link, node.last_seq = dict(known.row), dict(known.link), dict(known.last_seq)
        self.nodes[name] = node
        return node

    def introduce(self, node: KnownNode, hello: Hello) -> tuple[KnownNode, list[Row]]:
        """The node after a hello, and the rows of its GPUs if they are new."""
        host, new_gpus = hello.host, []
        if not node.is_machine(hello):
            if node.row["boot_id"] is not None:
                last_seq, phase = node.last_seq, node.phase
                node = self._new_node(str(node.row["node"]))
                node.last_seq, node.phase, node.lives = last_seq, phase, int(phase is Phase.LIVE)
            node.gpu_ids = tuple(range(self.next_gpu, self.next_gpu + len(hello.gpus)))
            self.next_gpu += len(hello.gpus)
            new_gpus = [self._gpu_row(i, node, g) for i, g in zip(node.gpu_ids, hello.gpus, strict=True)]
        self.nodes[str(node.row["node"])] = node
        node.gpus = hello.gpus
        node.gpu_columns, node.host_columns = hello.gpu_columns, hello.host_columns
        node.process_columns = hello.process_columns
        node.row |= {
            "hostname": host.hostname,
            "boot_id": host.boot_id,
            "cpu_model": host.cpu_model,
            "cpus": host.cpus,
            "memory_total_mib": host.memory_total_mib,
            "kernel": host.kernel,
            "driver_version": host.driver_version,
            "cuda_version": host.cuda_version,
            "agent_version": hello.agent_version,
            "simulated": hello.simulated,
            "capabilities": json.dumps(dict(hello.capabilities), ensure_ascii=False),
        }
        return node, new_gpus

    def _new_node(self, name: str) -> KnownNode:
        node_id = self.next_node
        self.next_node += 1
        return KnownNode(
            row={
                "node_id": node_id,
                "recording_id": self.recording_id,
                "node": name,
                "hostname": None,
                "boot_id": None,
                "cpu_model": None,
                "cpus": None,
                "memory_total_mib": None,
                "kernel": None,
                "driver_version": None,
                "cuda_version": None,
                "agent_version": None,
                "simulated": None,
                "capabilities": None,
            },
            link={
                "node_id": node_id,
                "life": None,
                "last_seq": None,
                "frames": 0,
                "lost_frames": 0,
                "reconnects": 0,
                "clock_offset_s": None,
                "round_trip_s": None,
            },
        )

    def _gpu_row(self, gpu_id: int, node: KnownNode, gpu: GpuFacts) -> Row:
        granted = self.allocation.get(str(node.row["node"]))
        return {
            "gpu_id": gpu_id,
            "node_id": node.node_id,
            "gpu_index": gpu.index,
            "uuid": gpu.uuid,
            "name": gpu.name,
            "pci_bus_id": gpu.pci_bus_id,
            "memory_total_mib": gpu.memory_total_mib,
            "power_limit_w": gpu.power_limit_w,
            "sm_clock_max_mhz": gpu.sm_clock_max_mhz,
            "mem_clock_max_mhz": gpu.mem_clock_max_mhz,
            "mig": gpu.mig,
            "allocated": None if granted is None or gpu.minor is None else gpu.minor in granted,
        }
