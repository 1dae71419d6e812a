"""A test cluster leaves no process or file behind, however it ends."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.cluster import slurm
from tests.cluster.cluster import Cluster
from tests.cluster.kinds import REPOSITORY
from tests.cluster.login import MARK
from tests.cluster.namespaces import ProcessId, marked
from tests.cluster.running import ClusterError, wait_until
from tests.cluster.state import clear_leftovers
from tests.terminal import PATIENCE_S

HOLD = """
import sys
from pathlib import Path
from tests.cluster.cluster import Cluster
cluster = Cluster.up(["solo1", "solo2"], 2, Path(sys.argv[1]))
print(*(place.init.pid for place in (cluster.login, *cluster)), flush=True)
sys.stdin.read()
"""


def traces() -> dict[str, object]:
    """Return the interfaces, mounts and files that a cluster could leave behind."""
    return {
        "links": {link["ifname"] for link in json.loads(_said("ip", "-json", "link"))},
        "network namespaces": _said("ip", "netns", "list"),
        "hosts": Path("/etc/hosts").read_text(),
        "mounts": Path("/proc/self/mounts").read_text(),
        "host name": _said("hostname"),
    }


def _said(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def in_network_of(init: ProcessId) -> list[ProcessId]:
    """Return the processes in the same network namespace."""
    network = Path(f"/proc/{init.pid}/ns/net").readlink()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            if (folder / "ns" / "net").readlink() == network:
                found.append(ProcessId.of(int(folder.name)))
    return found


def name(process: ProcessId) -> str:
    try:
        return Path(f"/proc/{process.pid}/comm").read_text().strip()
    except OSError:  # it has ended meanwhile
        return ""


@pytest.fixture
def root(machine: None, tmp_path: Path) -> Iterator[Path]:
    """Return a new root folder; after the test, check that its cluster left nothing behind."""
    before = traces()
    root = tmp_path / "cluster"
    yield root
    assert traces() == before
    assert not marked(MARK, str(root))


@contextmanager
def held(root: Path) -> Iterator[tuple[subprocess.Popen[str], list[ProcessId]]]:
    """Run another program with a cluster; yield the program and the cluster's node processes."""
    words = [sys.executable, "-c", HOLD, str(root)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=REPOSITORY, stdin=pipe, stdout=pipe, text=True) as program:
        assert program.stdout is not None
        try:
            yield program, [ProcessId.of(int(pid)) for pid in program.stdout.readline().split()]
        finally:
            program.kill()


def wait_for_the_end(nodes: list[ProcessId]) -> None:
    wait_until(lambda: not any(node.alive() for node in nodes), "the end of the nodes")


def test_down_ends_all_processes_and_removes_all_files(root: Path) -> None:
    before = traces()
    with Cluster.up(["solo1", "solo2"], 2, root) as cluster:
        cluster["solo1"].run("setsid sleep infinity >/dev/null 2>&1 &")
        running = [process for place in (cluster.login, *cluster) for process in in_network_of(place.init)]
        assert {"munged", "slurmctld", "slurmd", "sshd", "sleep"} <= {name(process) for process in running}
        assert traces() == before, "a cluster that is up shows on the machine"
    assert not [process for process in running if process.alive()]
    assert not root.exists()


def test_logs_stay_in_an_existing_folder(root: Path) -> None:
    root.mkdir()
    Cluster.up(["solo1"], 2, root).down()
    assert [path.name for path in root.iterdir()] == ["logs"]
    assert (root / "logs" / "login-slurmctld.log").stat().st_size > 0


def test_stray_processes_at_the_login_node_are_ended_and_reported(root: Path) -> None:
    cluster = Cluster.up(["solo1"], 2, root)
    with pytest.raises(ClusterError, match="left running on the login node: sleep 4321"), cluster:
        left = subprocess.Popen(["sleep", "4321"], env=cluster.env())
    assert left.wait(PATIENCE_S) == -signal.SIGKILL


def test_cluster_ends_with_its_killed_owner(root: Path) -> None:
    with held(root) as (program, nodes):
        program.kill()
        wait_for_the_end(nodes)
    assert root.exists()
    Cluster.up(["other"], 1, root).down()
    assert not root.exists()


def test_next_cluster_removes_leftovers(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dead, alive = tmp_path / "gswarm-cluster-dead", tmp_path / "gswarm-cluster-alive"
    with held(dead) as (program, nodes), held(alive) as (_, others):
        program.kill()
        wait_for_the_end(nodes)
        clear_leftovers()
        assert not dead.exists()
        assert all(node.alive() for node in others)
    wait_for_the_end(others)
    clear_leftovers()
    assert not alive.exists()


def test_failed_daemon_shows_its_log_and_leaves_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "_SLURM_CONF", slurm._SLURM_CONF + "NoSuchOption=1\n")
    with pytest.raises(ClusterError, match=r"(?s)slurmctld.*the end of its log.*NoSuchOption"):
        Cluster.up(["solo1"], 2, root)
    assert not root.exists()


def test_used_folder_is_refused(root: Path) -> None:
    refused = pytest.raises(ClusterError, match=f"a cluster is up in {root} already")
    with Cluster.up(["solo1"], 2, root), refused:
        Cluster.up(["solo2"], 2, root)
    root.mkdir()
    (root / "thesis.txt").touch()
    with pytest.raises(ClusterError, match="files that are not a cluster's"):
        Cluster.up(["solo1"], 2, root)


def test_up_status_shell_and_down_commands(root: Path) -> None:
    def by_hand(*words: str) -> str:
        words = (sys.executable, "-m", "tests.cluster", "--root", str(root), *words)
        return subprocess.run(words, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout

    try:
        by_hand("up", "--nodes", "1", "--gpus", "2", "--kind", "bare1=bare")
        assert re.search(r"^bare1 +10\.73\.0\.3 +bare +2 GPUs", by_hand("status"), re.MULTILINE)
        script = "scontrol show hostnames; srun -N2 hostname | sort"
        assert by_hand("shell", "salloc", "-N2", "bash", "-c", script).split() == ["bare1", "gpu01"] * 2
    finally:
        by_hand("down")
    assert not root.exists()
    assert "no cluster is up" in by_hand("down")
