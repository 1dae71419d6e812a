"""``gswarm-tui profile`` with real Slurm and real Nsight Systems, on nodes without CUDA."""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.killed_profiles import MARK, nothing_is_left, remove_what_is_left
from tests.cluster.laptop import Laptop, laptop
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


@pytest.fixture
def folder(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """Make a folder in the home that login node and compute nodes share."""
    made = cluster.home / tmp_path.name
    made.mkdir()
    (made / "ranks.py").write_text(RANKS)
    yield made
    remove_what_is_left(cluster)
    shutil.rmtree(made)


def again_if_nsys_crashes(test: Callable[..., None]) -> Callable[..., None]:
    """Repeat a test in which nsys itself failed.

    On a busy machine nsys 2022.4 may miss a semaphore or a process of its own, and print "sem_open", "End of
    file", "Local Endpoint is not available" or "Connection to the Agent lost".
    """

    @functools.wraps(test)
    def repeated(cluster: Cluster, folder: Path, **facts: Any) -> None:
        for _ in range(2):
            try:
                return test(cluster, folder, **facts)
            except (AssertionError, ClusterError) as error:
                if not re.search("sem_open|End of file|Local Endpoint|Agent lost", str(error)):
                    raise
                remove_what_is_left(cluster)
                shutil.rmtree(folder)
                folder.mkdir()
                (folder / "ranks.py").write_text(RANKS)
        return test(cluster, folder, **facts)

    return repeated


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


@again_if_nsys_crashes
def test_each_rank_is_profiled_in_an_allocation_of_its_own(cluster: Cluster, folder: Path) -> None:
    command = [sys.executable, str(folder / "ranks.py"), *AWKWARD]
    done = profile(cluster, folder, *TWO_NODES, "--setup=module load cuda/12.4", "--", *command)
    assert done.returncode == 5, done.stderr
    assert done.stdout == f"12.4 {AWKWARD}\n" * 2, done.stderr
    job = done.stderr.partition("(job ")[2].partition(")")[0]
    assert f"gswarm-tui: Using 2 GPUs on gpu[01-02] (job {job})\n" in done.stderr, done.stderr
    names = [f"gpu01-rank0-job{job}.nsys-rep", f"gpu02-rank1-job{job}.nsys-rep"]
    assert sorted(path.name for path in folder.glob("*.nsys-rep")) == names
    ranges = "SELECT node, rank, r.name FROM profile_ranges r ORDER BY ALL"
    assert ask(folder / f"profile-job{job}.duckdb", ranges) == [
        (f"gpu0{rank + 1}", rank, f"step {step} of rank {rank}") for rank in range(2) for step in range(3)
    ]
    nothing_is_left(cluster)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@again_if_nsys_crashes
def test_nothing_is_left_of_a_profile_that_is_killed(
    cluster: Cluster, folder: Path, number: signal.Signals
) -> None:
    env = user_env(cluster) | {MARK: str(cluster.root)}
    words = ["gswarm-tui", "profile", *TWO_NODES, "--", "sh", "-c", "touch started-$SLURM_PROCID; sleep 600"]
    log = folder / "profile.log"
    with log.open("w") as said, subprocess.Popen(words, env=env, cwd=folder, stderr=said) as popen:
        try:
            wait_until(lambda: len(list(folder.glob("started-*"))) == 2, "the start of both ranks", log)
        finally:
            os.kill(popen.pid, number)
            popen.wait(60)
    assert popen.returncode == (130 if number == signal.SIGINT else -9), log.read_text()
    nothing_is_left(cluster)
    assert not list(folder.glob("*.nsys-rep*"))


@again_if_nsys_crashes
def test_profile_in_a_running_job_is_a_session_and_leaves_the_job(cluster: Cluster, folder: Path) -> None:
    said = cluster.run("salloc -N1 -w gpu01 --gres=gpu:1 --no-shell").stderr
    job = said.rpartition(" ")[2].strip()
    try:
        command = ["sh", "-c", "sleep 3; echo finished --token=abc; exit 4"]
        inner = ["gswarm-tui", "profile", f"--job={job}", "--ranks=0,7", "--duration=1", "--", *command]
        done = subprocess.run(
            ["gswarm-tui", "record", f"--job={job}", "--db=run.duckdb", "--", *inner],
            env=user_env(cluster),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 4, done.stderr
        assert "finished --token=abc\n" in done.stdout, "the capture's end ended the command"
        assert "the command has no rank 7, so there is no report of it; ranks start at 0.\n" in done.stderr
        assert (folder / f"gpu01-rank0-job{job}.nsys-rep").stat().st_size > 10_000, done.stderr
        assert cluster.run(["squeue", "--noheader", "--format=%T", f"--jobs={job}"]).stdout == "RUNNING\n"
    finally:
        cluster.run(["scancel", job])
    what = "nsys profiles sh -c 'sleep 3; echo finished --token=***; exit 4' on gpu01: "
    cost = "its processes may run a few percent slower while it captures"
    sessions = "SELECT note, status FROM sessions WHERE name LIKE 'nsys-%'"
    assert ask(folder / "run.duckdb", sessions) == [(what + cost, "stopped")]
    assert ask(folder / "run.duckdb", "SELECT message FROM events WHERE kind = 'profile'") == [(what + cost,)]
    assert ask(folder / "run.duckdb", "SELECT node, rank, tool FROM profiles") == [("gpu01", 0, "nsys")]
    nothing_is_left(cluster)


def test_shims_run_the_real_tools_for_a_gui(cluster: Cluster, folder: Path) -> None:
    tools = folder / "tools"
    assert profile(cluster, folder, f"--shims={tools}").stdout == f"{tools}/nsys\n{tools}/ncu\n"
    env = user_env(cluster) | {"PARTITION": "main", MARK: str(cluster.root)}
    link = "/tmp/nvvp_root"
    options = "profile -t nvtx -s none --cpuctxsw=none"
    gui = f"""
        {tools}/ncu --version
        {tools}/nsys {options} -o {link}/timeline {sys.executable} {folder}/ranks.py a 'b  c'
        echo status $?
        squeue --noheader
        PARTITION=nosuch {tools}/nsys --version
        GSWARM_TUI_SETUP='module load nosuch/1' {tools}/nsys --version
    """
    done = subprocess.run(
        ["bash", "-c", gui], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    said = done.stdout.splitlines()
    assert said[0] == "NVIDIA (R) Nsight Compute Command Line Profiler", done.stderr
    assert "None ['a', 'b  c']" in said
    assert said[-1] == "status 5", "a job is left, or something but the tool's output was printed"
    assert "Slurm denied the allocation: " in done.stderr
    assert "the setup failed with exit status 1: ERROR: " in done.stderr
    assert (tools / "results" / "timeline.nsys-rep").stat().st_size > 10_000
    Path(link).unlink()
    nothing_is_left(cluster)


@again_if_nsys_crashes
def test_problems_are_printed_in_a_sentence(cluster: Cluster, folder: Path) -> None:
    one = ["--gres=gpu:1", "--salloc=-w gpu02"]
    importer = Path("/usr/lib/nsight-systems/host-linux-x64")
    cluster["gpu02"].run(["mount", "-t", "tmpfs", "none", str(importer)])
    try:
        raw = profile(cluster, folder, *one, "--", "true")
    finally:
        cluster["gpu02"].run(["umount", str(importer)])
    assert raw.returncode == 0, raw.stderr
    assert "isn't a report yet: the nsys that wrote it had no importer." in raw.stderr, raw.stderr
    assert len(list(folder.glob("gpu02-rank0-job*.qdstrm"))) == 1, "the raw report didn't come home"
    secret = "export API_TOKEN=abcdefgh123; module load nosuch/1"
    for words, sentence in (
        ([f"--setup={secret}"], "the setup failed with exit status 1: ERROR: Unable to locate a modulefile"),
        (
            ["--setup=PATH=/nowhere"],
            "there is no nsys on its PATH; load its module with --setup 'module load ...'.",
        ),
    ):
        done = profile(cluster, folder, *one, *words, "--", "true")
        assert done.returncode == 1
        assert f"gswarm-tui: gpu02: {sentence}" in done.stderr, done.stderr
        assert "abcdefgh123" not in done.stderr
    nothing_is_left(cluster)


@again_if_nsys_crashes
def test_laptop_profiles_through_the_login_node(cluster: Cluster, folder: Path) -> None:
    staged = cluster.home / ".cache" / "gswarm-tui" / "profiles"
    with laptop(cluster) as here:
        config = here.home / "ssh config"  # ssh looks for root's own, wherever HOME is
        keys = here.home / ".ssh"
        config.write_text(f"IdentityFile {keys}/id_ed25519\nUserKnownHostsFile {keys}/known_hosts\n")
        done = profile_from(
            here,
            f"--ssh-config={config}",
            *TWO_NODES,
            "--",
            sys.executable,
            str(folder / "ranks.py"),
            *AWKWARD,
        )
        assert done.returncode == 5, done.stderr
        assert done.stdout == f"None {AWKWARD}\n" * 2, done.stderr
        assert len(list(here.home.glob("gpu0?-rank?-job*.nsys-rep"))) == 2, done.stderr
        nothing_is_left(cluster)
        assert list(staged.iterdir()) == [], "reports stay on the login node"


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
