"""The nodes, GPUs, agent runs and sessions of a recording so far. No DuckDB, no clock.

Each is stored as its row of the database. The recorder prepares a transaction on a draft and keeps the draft
after the commit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gswarm_agent.frame import GpuFacts, GpuLink, Hello
from gswarm_tui.fleet.allocation import own_gpus
from gswarm_tui.store.sql.schema import LINKS, NODES

Row = dict[str, Any]
"""One row of a table by column; times are Unix microseconds."""

MachineKey = tuple[str, str | None, tuple[str, ...]]


@dataclass(frozen=True)
class KnownNode:
    """A machine that a node's name stands for; it may not have answered yet. ``gpu_ids`` belong to ``gpus``.

    ``life`` is its present agent run, None before the first; ``was_live`` is true once its link was up.
    ``links`` say how the GPUs are connected, as stored.
    """

    row: Row
    gpus: tuple[GpuFacts, ...] = ()
    gpu_ids: tuple[int, ...] = ()
    life: str | None = None
    was_live: bool = False
    links: tuple[GpuLink, ...] = ()

    @property
    def node_id(self) -> int:
        """The node's id in the file."""
        return int(self.row["node_id"])

    @property
    def key(self) -> MachineKey:
        """The identity of the machine: its name, boot and GPUs."""
        return self.row["node"], self.row["boot_id"], tuple(gpu.uuid for gpu in self.gpus)

    def gpu_id(self, index: int | None) -> int | None:
        """Return the id of the GPU with this NVML index, None if there is none."""
        return next((i for g, i in zip(self.gpus, self.gpu_ids, strict=True) if g.index == index), None)


@dataclass
class KnownLife:
    """An agent run: its row in ``links``, the ids of the GPUs in its frames, and their ranks."""

    link: Row
    node_id: int
    gpu_ids: tuple[int, ...] = ()
    ranks: Mapping[int, int] = field(default_factory=dict)

    @property
    def last_seq(self) -> int:
        """Sequence number of its last frame on disk, 0 before the first."""
        return int(self.link["last_seq"] or 0)


@dataclass
class KnownIds:
    """Machines, agent runs (lives) and sessions, and the next free ids of the file.

    ``nodes`` maps names to the present machine, ``lives`` is keyed by name and life, ``sessions`` by the
    recorder's id. ``allocation`` maps nodes to the device minors of the job's GPUs, where known.
    """

    recording_id: int
    next_node: int
    next_gpu: int
    next_session: int
    allocation: Mapping[str, frozenset[int]] = field(default_factory=dict)
    nodes: dict[str, KnownNode] = field(default_factory=dict)
    machines: dict[MachineKey, KnownNode] = field(default_factory=dict)
    lives: dict[tuple[str, str], KnownLife] = field(default_factory=dict)
    sessions: dict[str, Row] = field(default_factory=dict)

    def draft(self) -> KnownIds:
        """Return a copy to change; change lives only through ``own``."""
        return replace(
            self,
            nodes=dict(self.nodes),
            machines=dict(self.machines),
            lives=dict(self.lives),
            sessions=dict(self.sessions),
        )

    def own(self, name: str, life: str) -> KnownLife:
        """Replace a life by a copy that may be changed. Raises LookupError before its hello."""
        known = self.lives[name, life]
        copy = self.lives[name, life] = replace(known, link=dict(known.link))
        return copy

    def node(self, name: str) -> tuple[KnownNode, bool]:
        """Return the present machine of a node, and whether it was just added."""
        known = self.nodes.get(name)
        if known is not None:
            return known, False
        node = self.nodes[name] = KnownNode(self._node_row(name))
        return node, True

    def came_live(self, name: str) -> bool:
        """Note that the link to a node came up; return whether it had been up before."""
        node, _ = self.node(name)
        self.nodes[name] = replace(node, was_live=True)
        return node.was_live

    def introduce(self, name: str, hello: Hello, former: bool) -> tuple[KnownNode, list[Row]]:
        """Take in an agent's hello; return its machine, and the rows of its GPUs if they are new.

        A former life belongs to the machine on which it ran; the node's present machine doesn't change.
        """
        now, _ = self.node(name)
        key = name, hello.host.boot_id, tuple(gpu.uuid for gpu in hello.gpus)
        node, new_gpus = self.machines.get(key), []
        if node is None:
            row = self._node_row(name) if now.row["boot_id"] is not None else now.row
            gpu_ids = tuple(range(self.next_gpu, self.next_gpu + len(hello.gpus)))
            self.next_gpu += len(hello.gpus)
            node = KnownNode(row, hello.gpus, gpu_ids)
            own = own_gpus(hello.gpus, granted := self.allocation.get(name))
            new_gpus = [
                _gpu_row(i, node, gpu, None if granted is None else mine)
                for i, gpu, mine in zip(gpu_ids, hello.gpus, own, strict=True)
            ]
        life = None if former else hello.life
        agent = {
            "agent_version": hello.agent_version,
            "simulated": hello.simulated,
            "capabilities": json.dumps(dict(hello.capabilities), ensure_ascii=False),
        }
        node = self.machines[key] = replace(
            node,
            row=node.row | asdict(hello.host) | agent,
            gpus=hello.gpus,
            life=life or node.life,
            was_live=now.was_live,
            links=hello.links,
        )
        if not former or now.row["boot_id"] is None:
            self.nodes[name] = node
        known = self.lives.get((name, hello.life))
        link = _link_row(node, hello.life) if known is None else known.link
        self.lives[name, hello.life] = KnownLife(link, node.node_id, node.gpu_ids)
        return node, new_gpus

    def add_life(self, node: KnownNode, life: str) -> None:
        """Add a life that may never have sent a hello."""
        key = str(node.row["node"]), life
        if key not in self.lives:
            self.lives[key] = KnownLife(_link_row(node, life), node.node_id)

    def _node_row(self, name: str) -> Row:
        node_id = self.next_node
        self.next_node += 1
        row: Row = dict.fromkeys(column.name for column in NODES.columns)
        return row | {"node_id": node_id, "recording_id": self.recording_id, "node": name}


def _gpu_row(gpu_id: int, node: KnownNode, gpu: GpuFacts, allocated: bool | None) -> Row:
    facts = asdict(gpu)
    del facts["minor"]
    ids = {"gpu_id": gpu_id, "node_id": node.node_id, "gpu_index": facts.pop("index")}
    return ids | facts | {"allocated": allocated}


def _link_row(node: KnownNode, life: str) -> Row:
    row: Row = dict.fromkeys(column.name for column in LINKS.columns)
    return row | {"node_id": node.node_id, "life": life, "frames": 0, "lost_frames": 0, "reconnects": 0}
