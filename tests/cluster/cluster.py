"""A real GPU cluster on one machine: a login node, compute nodes with sshd and slurmd, slurmctld, munge.

Every node is a set of Linux namespaces: network (joined by a bridge), host name, processes, mounts. The
login node's namespaces hold the bridge and all nodes, so nothing of a cluster shows on the machine itself (no
interface, no entry in /etc/hosts, no mount), any number of clusters run side by side, and ending one process
takes all of one down. NVML is a stand-in that answers from each node's scenario file; programs on a node find
it as they find a real driver's library.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.cluster import files
from tests.cluster.bringup import Holders, bring_up
from tests.cluster.kinds import Kind
from tests.cluster.login import Login
from tests.cluster.namespaces import ProcessId
from tests.cluster.node import ClusterNode
from tests.cluster.requirements import missing
from tests.cluster.running import ClusterError
from tests.cluster.state import PREFIX, NodeRecord, State, clear_leftovers, login_init
from tests.terminal import PATIENCE_S


@dataclass
class Cluster:
    """A running cluster; as a context manager it stops at the end."""

    state: State
    login: Login
    nodes: tuple[ClusterNode, ...]
    _holders: Holders = field(default_factory=Holders, repr=False)

    @classmethod
    def up(
        cls,
        nodes: int | Sequence[str] = 4,
        gpus_per_node: int = 8,
        root: Path | None = None,
        *,
        kinds: Mapping[str, Kind] | None = None,
        own_homes: Collection[str] = (),
        slurm_site: Path | None = None,
    ) -> Self:
        """Start a cluster; it ends with this process, unless it is detached.

        Args:
            nodes: names, or how many of gpu01, gpu02, …; they are ordinary unless `kinds` says otherwise.
            root: a folder for all files, empty or new; a temporary one by default.
            kinds: sorts of nodes by name; names that are not in `nodes` are added.
            own_homes: the nodes that don't share the user's home folder.
            slurm_site: a folder whose files stand beside slurm.conf, which includes its `site.conf` first.

        Raises:
            ClusterError: the machine lacks something, or a daemon did not start (with the end of its log).
        """
        lack = missing()
        if lack:
            raise ClusterError(lack)
        names = [f"gpu{index:02}" for index in range(1, nodes + 1)] if isinstance(nodes, int) else list(nodes)
        chosen = dict.fromkeys(names, Kind.ORDINARY) | dict(kinds or {})
        if not any(kind.in_slurm for kind in chosen.values()):
            raise ClusterError("Slurm needs a node: make at least one ordinary or bare")
        clear_leftovers()
        folder, made = _empty_root(root)
        states = tuple(NodeRecord(name, kind, name in own_homes) for name, kind in chosen.items())
        cluster = cls._of(State(folder, ProcessId.of(os.getpid()), made, gpus_per_node, states))
        cluster.state.save()
        try:
            files.write(cluster.login, cluster.nodes, gpus_per_node, slurm_site)
            bring_up(cluster.login, cluster.nodes, cluster._holders)
        except BaseException:
            cluster.down()
            raise
        return cluster

    @classmethod
    def attach(cls, root: Path) -> Self:
        """Return the cluster that another process started in a root folder. Raises ClusterError."""
        try:
            state = State.load(root)
        except FileNotFoundError:
            raise ClusterError(f"there is no cluster in {root}") from None
        if login_init(root) is None:
            raise ClusterError(f"the cluster in {root} has ended: clear it away with `down`")
        return cls._of(state)

    @classmethod
    def _of(cls, state: State) -> Self:
        login = Login(state.root)
        homes = [state.root / "homes" / node.name if node.own_home else login.home for node in state.nodes]
        nodes = tuple(
            ClusterNode(node.name, node.kind, index, home, login, state.gpus if node.kind.has_driver else 0)
            for index, (node, home) in enumerate(zip(state.nodes, homes, strict=True), 1)
        )
        return cls(state, login, nodes)

    def __getitem__(self, name: str) -> ClusterNode:
        return next(node for node in self.nodes if node.name == name)

    def __iter__(self) -> Iterator[ClusterNode]:
        return iter(self.nodes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        strays = self.down()
        if strays and error is None:
            raise ClusterError("left running on the login node: " + "; ".join(strays))

    @property
    def root(self) -> Path:
        """The folder of all files; daemons' logs are in its logs folder."""
        return self.state.root

    @property
    def home(self) -> Path:
        """The user's home folder."""
        return self.login.home

    def env(self) -> dict[str, str]:
        """The user's environment at the login node, for processes that a test starts there."""
        return self.login.env()

    def run(
        self, command: str | Sequence[str], *, check: bool = True, timeout: float = PATIENCE_S, text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a command at the login node to its end. Raises ClusterError if it fails and `check` is on."""
        return self.login.run(command, check=check, timeout=timeout, text=text)

    def entered(self) -> AbstractContextManager[None]:
        """Move this thread and its child processes to the login node, from which nodes can be reached."""
        return self.login.entered()

    def detach(self) -> None:
        """Let the cluster outlive this process, until `down`."""
        self._holders.detach()

    def down(self) -> list[str]:
        """Stop the cluster and remove its files; return stray processes' command lines."""
        strays = self.state.clear()
        self._holders.wait()
        return strays


def _empty_root(root: Path | None) -> tuple[Path, bool]:
    """Return the folder for a new cluster's files, and whether this call created it."""
    if root is None:
        made = Path(tempfile.mkdtemp(prefix=f"{PREFIX}-"))
        made.chmod(0o755)  # as a shared file system's folder is
        return made, True
    root = root.resolve()
    try:
        former = State.load(root)
    except FileNotFoundError:
        pass
    else:
        if former.alive():
            raise ClusterError(f"a cluster is up in {root} already: use it, or take it down first")
        former.clear()
    if not root.exists():
        root.mkdir(parents=True)
        return root, True
    if any(root.iterdir()):
        raise ClusterError(f"{root} holds files that are not a cluster's: name an empty or a new folder")
    return root, False
