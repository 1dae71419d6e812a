"""``gswarm-tui profile`` with real Slurm and real Nsight Systems, on nodes without CUDA."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.laptop import Laptop, laptop
from tests.cluster.namespaces import marked
from tests.cluster.person import ask, user_env
from tests.cluster.running import ClusterError, wait_until

RANKS = """\
import ctypes, os, sys
nvtx = ctypes.CDLL("libnvToolsExt.so.1")
for step in range(3):
    nvtx.nvtxRangePushA(f"step {step} of rank {os.environ['SLURM_PROCID']}".encode())
    nvtx.nvtxRangePop()
print(os.environ.get("CUDA_VERSION"), sys.argv[1:])
sys.exit(5)
"""
AWKWARD = ["two words", "$HOME", "*", "both'\"quotes", "line\nbreak", "", "--", "\\"]
TWO_NODES = ["--nodes=2", "--gres=gpu:1", "--salloc=-w gpu01,gpu02"]
MARK = "GSWARM_TEST_PROFILE"


@pytest.fixture
def folder(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """Make a folder in the home that login node and compute nodes share."""
    made = cluster.home / tmp_path.name
    made.mkdir()
    (made / "ranks.py").write_text(RANKS)
    yield made
    shutil.rmtree(made)


def profile(cluster: Cluster, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command at the login node to its end."""
    return subprocess.run(
        ["gswarm-tui", "profile", *words],
        env=user_env(cluster) | {MARK: str(cluster.root)},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def nothing_is_left(cluster: Cluster) -> None:
    """Wait until no job, no process that a profile started and no folder for reports is left."""

    def left() -> str:
        jobs = cluster.run("squeue --noheader").stdout
        running = [str(process.pid) for process in marked(MARK, str(cluster.root))]
        find = "ls -d /tmp/gswarm-profile-*"
        folders = [cluster[name].run(find, check=False).stdout for name in ("gpu01", "gpu02")]
        return " ".join([jobs, *running, *folders]).strip()

    try:
        wait_until(lambda: not left(), "the end of job, processes and folders", timeout=30)
    except ClusterError as error:
        raise AssertionError(f"{error}: {left()}") from None


def test_each_rank_is_profiled_in_an_allocation_of_its_own(cluster: Cluster, folder: Path) -> None:
    command = [sys.executable, str(folder / "ranks.py"), *AWKWARD]
    done = profile(cluster, folder, *TWO_NODES, "--setup=module load cuda/12.4", "--", *command)
    assert done.returncode == 5, done.stderr
    assert done.stdout == f"12.4 {AWKWARD}\n" * 2
    job = done.stderr.partition("(job ")[2].partition(")")[0]
    assert f"gswarm-tui: Using 2 × h100 on gpu[01-02] (job {job})\n" in done.stderr, done.stderr
    names = [f"gpu01-rank0-job{job}.nsys-rep", f"gpu02-rank1-job{job}.nsys-rep"]
    assert sorted(path.name for path in folder.glob("*.nsys-rep")) == names
    ranges = "SELECT node, rank, r.name FROM profile_ranges r ORDER BY ALL"
    assert ask(folder / f"profile-job{job}.duckdb", ranges) == [
        (f"gpu0{rank + 1}", rank, f"step {step} of rank {rank}") for rank in range(2) for step in range(3)
    ]
    nothing_is_left(cluster)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_profile_that_is_killed(
    cluster: Cluster, folder: Path, number: signal.Signals
) -> None:
    env = user_env(cluster) | {MARK: str(cluster.root)}
    words = ["gswarm-tui", "profile", *TWO_NODES, "--", "sh", "-c", "touch started-$SLURM_PROCID; sleep 600"]
    with subprocess.Popen(words, env=env, cwd=folder, stderr=subprocess.PIPE, text=True) as popen:
        wait_until(lambda: len(list(folder.glob("started-*"))) == 2, "the start of both ranks")
        os.kill(popen.pid, number)
        _, said = popen.communicate(timeout=60)
    assert popen.returncode == (130 if number == signal.SIGINT else -9), said
    nothing_is_left(cluster)
    assert not list(folder.glob("*.nsys-rep*"))


def test_laptop_profiles_through_the_login_node(cluster: Cluster, folder: Path) -> None:
    with laptop(cluster) as here:
        done = profile_from(here, *TWO_NODES, "--", sys.executable, str(folder / "ranks.py"), *AWKWARD)
        assert done.returncode == 5, done.stderr
        assert done.stdout == f"None {AWKWARD}\n" * 2
        assert len(list(here.home.glob("gpu0?-rank?-job*.nsys-rep"))) == 2, done.stderr
        nothing_is_left(cluster)
        staged = cluster.home / ".cache" / "gswarm-tui" / "profiles"
        assert not list(staged.iterdir()), "reports stay on the login node"


def profile_from(here: Laptop, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command on the laptop to its end."""
    program = [str(Path(sys.executable).with_name("gswarm-tui")), "profile", "--jump=login", *words]
    return subprocess.run(
        here.words(*program),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
