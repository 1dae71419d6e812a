"""The state file of a test cluster; with it any process can find the cluster and remove it."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.kinds import Kind
from tests.cluster.login import MARK
from tests.cluster.namespaces import ProcessId, command_line, marked

PREFIX = "gswarm-cluster"
_NAME = "cluster.json"


@dataclass(frozen=True)
class NodeRecord:
    """A node in the state file."""

    name: str
    kind: Kind
    own_home: bool


@dataclass(frozen=True)
class State:
    """A cluster in the state file: its root folder, owner and nodes."""

    root: Path
    owner: ProcessId
    made_root: bool
    gpus: int
    nodes: tuple[NodeRecord, ...]

    def save(self) -> None:
        """Write the state file into the root folder."""
        content = {
            "owner": [self.owner.pid, self.owner.started],
            "made_root": self.made_root,
            "gpus": self.gpus,
            "nodes": [[node.name, node.kind, node.own_home] for node in self.nodes],
        }
        (self.root / _NAME).write_text(json.dumps(content))

    @classmethod
    def load(cls, root: Path) -> State:
        """Read the state file. Raises FileNotFoundError."""
        content = json.loads((root / _NAME).read_text())
        nodes = tuple(NodeRecord(name, Kind(kind), own_home) for name, kind, own_home in content["nodes"])
        return cls(root, ProcessId(*content["owner"]), content["made_root"], content["gpus"], nodes)

    def alive(self) -> bool:
        """Return whether the cluster is up or starting."""
        return self.owner.alive() or login_init(self.root) is not None

    def clear(self) -> list[str]:
        """End all processes and remove all files, except logs in a root folder that existed before.

        Returns the command lines of what still ran at the login node: something that a test left behind.
        """
        init = login_init(self.root)
        if init is not None:
            init.kill()  # takes all nodes, their namespaces and networks with it
        strays = marked(MARK, str(self.root))
        lines = [command_line(stray) for stray in strays]
        for stray in strays:
            stray.kill()
        if self.made_root:
            # Somebody else may be clearing the same leftovers.
            shutil.rmtree(self.root, ignore_errors=True)
        else:
            for path in self.root.iterdir():
                if path.is_dir() and path.name != "logs":
                    shutil.rmtree(path)
                elif path.is_file():
                    path.unlink()
        return lines


def login_init(root: Path) -> ProcessId | None:
    """Return the init process of the cluster in a root folder, if it runs."""
    try:
        pid = int((root / "login.pid").read_text())
    except (FileNotFoundError, ValueError):
        pid = 0
    return next((process for process in marked(MARK, str(root)) if process.pid == pid), None)


def clear_leftovers() -> None:
    """Remove the temporary clusters whose owners died."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{_NAME}"):
        try:
            state = State.load(path.parent)
        except (OSError, ValueError):  # another process is making or clearing it just now
            continue
        if not state.alive():
            state.clear()
