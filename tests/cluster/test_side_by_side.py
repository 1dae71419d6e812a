"""Several heads watch the same nodes at the same time without disturbing each other."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.node import ClusterNode
from tests.cluster.person import (
    all_ended,
    ask,
    closed_properly,
    every_tick_is_a_frame,
    leave,
    measuring,
    seated,
    start,
    wait_seconds,
)

NODE = "gpu01"
IDS = {"ada": 4201, "bob": 4202}
ASK = """
import socket, sys
visitor = socket.socket(socket.AF_UNIX)
visitor.settimeout(10)
visitor.connect(sys.argv[1])
try:
    visitor.sendall(b"?")
    print("answered" if visitor.recv(65536) else "hung up on")
except (BrokenPipeError, ConnectionResetError):
    print("hung up on")
"""


@pytest.fixture
def users(cluster: Cluster) -> Iterator[Mapping[str, int]]:
    """Return two users of one node by name and uid; tests can log in as both."""
    node = cluster[NODE]
    passwd = node.folder / "etc" / "passwd"  # what the node sees is this very file
    before = passwd.read_text()
    homes = {name: cluster.root / "homes" / name for name in IDS}
    for name, home in homes.items():
        ssh = home / ".ssh"
        ssh.mkdir(mode=0o700, parents=True)
        shutil.copy(cluster.home / ".ssh" / "authorized_keys", ssh)
        home.parent.chmod(0o755)
        for path in (home, ssh, ssh / "authorized_keys"):
            os.chown(path, IDS[name], IDS[name])
    lines = [f"{name}:x:{number}:{number}::{homes[name]}:/bin/bash\n" for name, number in IDS.items()]
    passwd.write_text(before + "".join(lines))
    yield IDS
    passwd.write_text(before)
    for home in homes.values():
        shutil.rmtree(home)


def run_as(node: ClusterNode, user: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command on the node as an unprivileged user."""
    return node.run(["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *words], check=False)


def ask_agent(node: ClusterNode, user: int, socket: str) -> str:
    """Return an agent's reply to a user, or the last line of the error."""
    done = run_as(node, user, "python3", "-c", ASK, socket)
    return (done.stdout or done.stderr).strip().splitlines()[-1]


def test_users_cannot_reach_each_others_agents(
    cluster: Cluster, users: Mapping[str, int], tmp_path: Path
) -> None:
    node = cluster[NODE]
    with ExitStack() as stack:
        terminals = {name: stack.enter_context(seated(cluster)) for name in users}
        for name, terminal in terminals.items():
            start(terminal, f"--nodes {NODE} --user {name} --interval 0.2 --db {tmp_path / name}.duckdb")
            terminal.wait_for("nodes 1/1")
        for number in users.values():
            # Below init: the process that reads the GPUs is a child of the agent.
            agents = node.run(["pgrep", "-P", "1", "-x", "-u", str(number), "gswarm-agent"]).stdout.split()
            assert len(agents) == 1
            [socket] = node.run(f"ls /var/tmp/gswarm-tui-{number}/*/serve").stdout.split()
            assert ask_agent(node, number, socket) == "answered"
            folder = Path(socket).parent
            [other] = set(users.values()) - {number}
            for path in (folder.parent, folder):
                refused = run_as(node, other, "ls", str(path))
                assert refused.returncode != 0
                assert "Permission denied" in refused.stderr
            assert ask_agent(node, other, socket) == "PermissionError: [Errno 13] Permission denied"

            # Were the folder open to all, the agent would still look who comes.
            node.run(f"chmod 711 {folder.parent} {folder}; chmod 666 {socket}")
            assert ask_agent(node, other, socket) == "hung up on"
            assert ask_agent(node, number, socket) == "answered"
            node.run(f"chmod 700 {folder.parent} {folder}; chmod 600 {socket}")
        for name, terminal in terminals.items():
            wait_seconds(terminal, 2)  # of the clock, whose first may be short
            status, said = leave(terminal)
            assert status == 0, f"{name}: {said}"
    all_ended(cluster, [NODE])
    for name in users:
        db = tmp_path / f"{name}.duckdb"
        closed_properly(db)
        [(frames, lost)] = ask(db, "SELECT frames, lost_frames FROM links")
        assert (frames > 2, lost) == (True, 0)


def test_one_user_can_watch_the_same_nodes_twice(cluster: Cluster, tmp_path: Path) -> None:
    first_db, second_db = tmp_path / "first.duckdb", tmp_path / "second.duckdb"
    words = f"--nodes {NODE} gpu02 --interval 0.2"
    with seated(cluster) as first, seated(cluster, (200, 40)) as second:
        start(first, f"{words} --db {first_db}")
        first.wait_for("nodes 2/2")
        start(second, f"{words} --db {first_db}")
        second.wait_for("nodes 2/2")
        assert "attached" in second.screen()
        status, said = leave(second)
        assert status == 0, said
        start(second, f"{words} --db {second_db}")
        second.wait_for("nodes 2/2")
        assert len(measuring(cluster[NODE])) == len(measuring(cluster["gpu02"])) == 2
        wait_seconds(second, 2)
        status, said = leave(second)
        assert status == 0, said
        wait_seconds(first, 1)
        assert "nodes 2/2" in first.screen()
        status, said = leave(first)
        assert status == 0, said
    all_ended(cluster, [NODE, "gpu02"])
    for db in (first_db, second_db):
        closed_properly(db)
        every_tick_is_a_frame(db, 0.2)
        assert ask(db, "SELECT count(*) FROM links WHERE lost_frames = 0 AND reconnects = 0") == [(2,)]
        assert ask(db, "SELECT count(*) FROM events WHERE kind IN ('link_lost', 'gap')") == [(0,)]
