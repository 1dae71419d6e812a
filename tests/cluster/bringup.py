"""Starts a test cluster's processes in order; a failed start shows the end of its log."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.cluster.kinds import Folders
from tests.cluster.login import MARK, SYSTEM_PATH, Login
from tests.cluster.namespaces import NEW
from tests.cluster.node import ClusterNode, address_of, interface_of
from tests.cluster.running import ClusterError, tail, wait_until
from tests.terminal import PATIENCE_S

_HERE = Path(__file__).parent
_PREFIX_LENGTH = 16


class Holders:
    """Child processes that keep the cluster up; it ends with this program unless detached."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, words: Sequence[str], what: str, log: Path, pid_file: Path) -> None:
        """Start a process; return when it has written its pid to `pid_file`."""
        with log.open("wb") as file:
            process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=file, stderr=file)
        self._started.append(process)

        def ready() -> bool:
            if process.poll() is not None:
                raise ClusterError(f"{what} failed with status {process.returncode}{tail(log)}")
            return pid_file.exists() and pid_file.read_text().endswith("\n")

        wait_until(ready, what, log)

    def detach(self) -> None:
        """Let the cluster outlive this program."""
        lifeline = self._started[0].stdin
        assert lifeline is not None
        lifeline.write(b"stay\n")
        lifeline.close()

    def wait(self) -> None:
        """Wait until all have ended."""
        for process in self._started:
            if process.stdin is not None:
                process.stdin.close()
            process.wait(PATIENCE_S)


def bring_up(login: Login, nodes: Sequence[ClusterNode], holders: Holders) -> None:
    """Start everything; returns when SSH and Slurm work. Raises ClusterError."""
    _start_login(login, holders)
    _lay_cables(login, nodes)
    login.start_slurmctld()
    with ThreadPoolExecutor(max_workers=4) as pool:
        list(pool.map(lambda node: _start_node(node, holders), nodes))
    expected = {node.name for node in nodes if node.kind.in_slurm}
    wait_until(lambda: login.idle_nodes() == expected, "Slurm's notice of all nodes", login.log("slurmctld"))


def _start_login(login: Login, holders: Holders) -> None:
    script = ["bash", str(_HERE / "login.sh"), str(login.root), _with_length(address_of(0))]
    clean = ["env", "--ignore-environment", f"PATH={SYSTEM_PATH}", f"{MARK}={login.root}"]
    words = ["unshare", "--net", *NEW, *clean, *script]
    holders.start(words, "the start of the login node", login.log("init"), login.pid_file)
    socket = login.seen_from_outside("/run/munge/munge.socket.2")
    wait_until(socket.exists, "the start of munged", login.log("munged"))


def _lay_cables(login: Login, nodes: Sequence[ClusterNode]) -> None:
    batch = ""
    for node in nodes:
        cable = interface_of(node.index)
        batch += f"netns add {node.name}\nlink add {cable} type veth peer name eth0 netns {node.name}\n"
        batch += f"link set {cable} master bridge up\n"
    login.run(["ip", "-batch", "-"], text=batch)


def _start_node(node: ClusterNode, holders: Holders) -> None:
    folders = Folders.of(node.kind, node.login.root)
    facts = [str(node.login.root), node.name, _with_length(node.address), str(node.gpus)]
    lists = [":".join(map(str, paths)) for paths in (folders.own, folders.shared)]
    script = ["bash", str(_HERE / "node.sh"), *facts, *lists]
    namespaces = ["nsenter", f"--net=/run/netns/{node.name}", "unshare", *NEW]
    words = node.login.words([*namespaces, *script], daemon=True)
    holders.start(words, f"the start of {node.name}", node.log("init"), node.folder / "init.pid")
    node.start_sshd()
    if node.kind.in_slurm:
        node.start_slurmd()


def _with_length(address: str) -> str:
    return f"{address}/{_PREFIX_LENGTH}"
