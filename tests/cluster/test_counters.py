"""Hardware counters in real Slurm jobs with real perf: who may count, what is recorded, whom it yields to."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.person import ask, user_env
from tests.cluster.running import wait_until

RECORD = [
    "gswarm-tui",
    "record",
    "--metrics",
    "core,host,counters",
    "--interval",
    "0.5",
    "--db",
    "run.duckdb",
]
SAMPLES = "SELECT count(page_faults_s), count(instructions_g_s) FROM host_samples"
EVENTS = "SELECT message FROM events WHERE kind = 'counters' ORDER BY ts"


@pytest.fixture
def folder(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    made = cluster.home / tmp_path.name
    made.mkdir()
    yield made
    shutil.rmtree(made)
    cluster["gpu01"].run("rm -f /run/likwid.lock /run/likwid-test")


def record(cluster: Cluster, folder: Path, salloc: str, *command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["salloc", "-Q", "-w", "gpu01", *salloc.split(), *RECORD, "--", *command],
        env=user_env(cluster),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_job_that_shares_its_node_gets_no_counters(cluster: Cluster, folder: Path) -> None:
    with record(cluster, folder, "--gres=gpu:1", "true") as run:
        assert run.stderr is not None
        said = run.stderr.read()
    assert run.returncode != 0
    assert "hardware counters count all users' processes" in said
    assert "request it with --exclusive" in said
    assert not (folder / "run.duckdb").exists()


def test_counters_are_recorded_and_yielded_to_a_profiler_and_the_sites_lock(
    cluster: Cluster, folder: Path
) -> None:
    node = cluster["gpu01"]
    until_done = "while [ ! -e done ]; do sleep 0.1; done"
    with record(cluster, folder, "--exclusive", "sh", "-c", until_done) as run:

        def counting() -> bool:
            return node.run("pgrep --exact perf", check=False).returncode == 0

        def tool() -> str:
            return node.run("pgrep --full 'perf stat -a -I'", check=False).stdout.strip()

        wait_until(tool, "the agent's perf")
        age = "ps -o etimes= -C perf"
        wait_until(lambda: node.run(age, check=False).stdout.strip() > "2", "values of three seconds")
        with node.spawn("perf stat -a sleep 600"):
            wait_until(lambda: not tool(), "the end of the agent's perf")
        wait_until(tool, "the agent's perf again")
        node.run("touch /run/likwid.lock; chown nobody /run/likwid.lock")
        wait_until(lambda: not counting(), "the end of the agent's perf")
        closed = cluster.run("gswarm-tui doctor --nodes gpu01", check=False)
        assert "CPU counters: held by nobody (owner of /var/run/likwid.lock)." in closed.stdout
        node.run("rm /run/likwid.lock")
        wait_until(tool, "the agent's perf again")
        old = set(tool().split())
        node.run("pkill -KILL --exact gswarm-agent")
        wait_until(lambda: not old & set(tool().split()), "the end of the killed agent's perf")
        (folder / "done").touch()
        assert run.wait(60) == 0, run.stderr and run.stderr.read()
    wait_until(lambda: not counting(), "the end of perf with the job")
    ((faults, instructions),) = ask(folder / "run.duckdb", SAMPLES)
    assert faults > 0
    events = [message for (message,) in ask(folder / "run.duckdb", EVENTS)]
    assert any(text.startswith("CPU counters not read: in use by perf (pid") for text in events)
    assert any("held by nobody (owner of /var/run/likwid.lock)" in text for text in events)
    assert any(text.startswith("CPU counters read with perf every 1 s") for text in events)
    reasons = "SELECT capabilities->>'cpu_counters', capabilities->>'instructions_g_s' FROM nodes"
    ((rights, reason),) = ask(folder / "run.duckdb", reasons)
    assert rights.startswith("open to root, the whole node")
    assert bool(instructions) != bool(reason), "measured, or with a reason as on virtual machines"
