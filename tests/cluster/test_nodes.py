"""Single nodes fail while the others are recorded; the agent is sent to nodes that lack it."""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.person import (
    agents,
    all_ended,
    ask,
    closed_properly,
    event_line,
    every_tick_is_a_frame,
    leave,
    measuring,
    seated,
    start,
)
from tests.cluster.running import wait_until
from tests.cluster.terminal import Terminal

WIDE = (200, 40)
NODES = ("gpu01", "gpu02", "gpu03", "gpu04")
NEVER_THERE = {
    "bad01": "it refuses the user root",
    "bad02": "its host key is not the one in ~/.ssh/known_hosts",
    "bad04": "its host key is not in ~/.ssh/known_hosts",
    "nosuch": "its name does not resolve",
}


@pytest.fixture
def terminal(cluster: Cluster) -> Iterator[Terminal]:
    """Open a wide terminal at the login node."""
    with seated(cluster, WIDE) as terminal:
        yield terminal


def row(node: str, words: str) -> re.Pattern[str]:
    """Return a pattern for a node's line of the screen that contains these words."""
    return re.compile(rf"^ {node} .*{words}", re.MULTILINE)


def test_failing_node_is_reported_and_stops_no_other(
    cluster: Cluster, terminal: Terminal, tmp_path: Path
) -> None:
    db = tmp_path / "failures.duckdb"
    start(terminal, f"--nodes gpu[01-04] bad[01-04] nosuch --interval 0.5 --db {db}")
    screen = terminal.wait_for("nodes 5/9")
    for name, reason in NEVER_THERE.items():
        assert row(name, f"unreachable.*{reason}").search(screen), screen
    assert row("bad03", "no GPUs").search(screen), screen

    [agent] = measuring(cluster["gpu03"])
    cluster["gpu03"].run(f"kill -KILL {agent}")
    terminal.wait_for(
        event_line(
            "gpu03", "lost: the agent ended with exit status 0: its process on the node was killed or failed"
        )
    )
    terminal.wait_for(event_line("gpu03", "connected again"))

    cluster["gpu02"].stop_sshd()
    terminal.wait_for(row("gpu02", "it refuses connections: nothing listens on its SSH port"))
    cluster["gpu02"].start_sshd()
    terminal.wait_for(event_line("gpu02", "connected again"))

    cluster["gpu04"].partition()
    terminal.wait_for(row("gpu04", r"stale \d+ s"))
    terminal.wait_for(row("gpu04", r"lost .*no data for \d+ s"))
    cluster["gpu04"].heal()
    terminal.wait_for(event_line("gpu04", "connected again"))
    terminal.wait_for("nodes 5/9")
    usual = len(agents(cluster["gpu01"]))  # the agent, its reader of GPUs, and the relay of one connection
    wait_until(lambda: len(agents(cluster["gpu04"])) == usual, "the end of the connection that was cut off")

    status, said = leave(terminal)
    assert status == 0, said
    closed_properly(db)
    all_ended(cluster, NODES)
    events = dict(
        ask(
            db,
            "SELECT node, list(kind ORDER BY ts) FROM events JOIN nodes USING (node_id) "
            "WHERE kind IN ('link_live', 'link_lost', 'stale', 'fresh') GROUP BY node",
        )
    )
    links = {node: [kind for kind in kinds if kind.startswith("link")] for node, kinds in events.items()}
    assert links["gpu01"] == ["link_live"]
    assert links["gpu02"] == ["link_live", "link_lost", "link_lost", "link_live"]  # broken, then refused
    assert links["gpu03"] == ["link_live", "link_lost", "link_live"]
    assert links["gpu04"] == ["link_live", "link_lost", "link_live"]
    lost = events["gpu04"].index("link_lost")
    assert "stale" in events["gpu04"][:lost]
    assert "fresh" in events["gpu04"][lost:]
    assert ask(
        db,
        "SELECT node, max(reconnects) FROM links JOIN nodes USING (node_id) "
        "WHERE node LIKE 'gpu%' GROUP BY node ORDER BY node",
    ) == [
        ("gpu01", 0),
        ("gpu02", 1),
        ("gpu03", 1),
        ("gpu04", 1),
    ]
    every_tick_is_a_frame(db, 0.5, "node = 'gpu01'")


def cached(cluster: Cluster) -> dict[str, bytes]:
    """Return the agent's files in the user's cache by path: one folder, named by the hash of its content."""
    [folder] = (cluster.home / ".cache" / "gswarm-tui").glob("agent-*")
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
    assert folder.name == "agent-" + hashlib.sha256(files["MANIFEST"]).hexdigest()[:16]
    return files


def is_whole(files: dict[str, bytes]) -> bool:
    """Return whether the files match the manifest's names and hashes."""
    lines = [
        f"{hashlib.sha256(data).hexdigest()}  {name}\n"
        for name, data in sorted(files.items())
        if name != "MANIFEST" and "__pycache__" not in name
    ]
    return "".join(lines).encode() == files["MANIFEST"]


def test_agent_is_sent_where_it_is_missing(cluster: Cluster, terminal: Terminal) -> None:
    """Four nodes without an agent share a home and start at once; later a file there is truncated."""
    cache = cluster.home / ".cache" / "gswarm-tui"
    shutil.rmtree(cache, ignore_errors=True)
    command = f"--nodes {' '.join(NODES)} --no-record --agent-python /usr/bin/python3"
    start(terminal, command)
    terminal.wait_for("nodes 4/4")
    assert leave(terminal) == (0, "")
    before = cached(cluster)
    assert is_whole(before)

    [broken] = cache.rglob("pynvml.py")
    broken.write_bytes(before["pynvml.py"][:1000])
    start(terminal, command)
    terminal.wait_for("nodes 4/4")
    assert leave(terminal) == (0, "")
    assert is_whole(cached(cluster))


def test_heads_python_is_used_where_a_node_has_it(cluster: Cluster, terminal: Terminal) -> None:
    start(terminal, "--nodes gpu01 --no-record")
    terminal.wait_for("nodes 1/1")
    [agent] = measuring(cluster["gpu01"])
    # A node has a /tmp of its own.
    python = f"$(readlink -e {sys.executable} || readlink -f /usr/bin/python3)"
    assert cluster["gpu01"].run(f"test /proc/{agent}/exe -ef {python} && echo same").stdout == "same\n"
    assert leave(terminal) == (0, "")


OLD_PYTHON = """\
#!/bin/sh
# A Python that takes itself for 3.6: called as OLD -IS FILE ARGUMENTS
shift
pretend="import runpy, sys; sys.version_info = (3, 6, 8, 'final', 0)"
exec /usr/bin/python3 -IS -c "$pretend; runpy.run_path(sys.argv[1], run_name='__main__')" "$@"
"""


def test_node_with_no_python_or_an_old_one_is_reported(cluster: Cluster, terminal: Terminal) -> None:
    bare = cluster["gpu03"]
    python = bare.run("readlink -f /usr/bin/python3").stdout.strip()
    old = cluster.home / "old-python"
    old.write_text(OLD_PYTHON)
    old.chmod(0o755)

    bare.run(f"mount --bind /etc/hostname {python}")
    try:
        start(terminal, "--nodes gpu01 gpu03 --no-record")
        terminal.wait_for(row("gpu03", "unreachable.*it has no working python3 .* load one with --setup"))
        terminal.wait_for("nodes 1/2")
        assert leave(terminal) == (0, "")

        bare.run(f"umount {python} && cp {python} /run/python && mount --bind {old} {python}")
        old.write_text(OLD_PYTHON.replace("/usr/bin/python3", "/run/python"))
        start(terminal, "--nodes gpu01 gpu03 --no-record")
        terminal.wait_for(
            row("gpu03", "unreachable.*its python3 is 3.6.8; 3.9 or later with _ctypes is needed")
        )
        terminal.wait_for("nodes 1/2")
        assert leave(terminal) == (0, "")
    finally:
        bare.run(f"umount {python}; rm -f /run/python")
        old.unlink()
