"""Dask across the nodes, started by Slurm and by SSH, recorded and compared."""

from __future__ import annotations

import csv
import json
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from distributed import Client

from tests.cluster.cluster import Cluster
from tests.cluster.killed_profiles import remove_what_is_left
from tests.cluster.person import ask, closed_properly, user_env
from tests.cluster.running import wait_until
from tests.cluster.test_trial import allocated, ended, start_trial
from tests.integration.test_compare import frames
from tests.unit.store_recording import INFO, T0, record

SUM = str(Path(__file__).parents[2] / "contrib" / "dask_sum.py")
THREADS = re.compile(r"on (\d+) threads: [0-9.]+ s")
SIZE = ("--size=6000", "--chunk=1000")
MARKS = """
SELECT value FROM mark_values WHERE mark = 'dask tasks' AND key = 'dask_tasks' ORDER BY ts
"""


@pytest.fixture
def folder(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """Make a folder in the home that login node and compute nodes share."""
    made = cluster.home / tmp_path.name
    made.mkdir()
    yield made
    remove_what_is_left(cluster)
    shutil.rmtree(made)


def test_trial_compares_a_dask_sum_on_one_and_two_nodes(cluster: Cluster, folder: Path) -> None:
    words = ["--node-counts=1,2", "--gpus-per-node=1", "--repeat=1", "--throughput=([0-9.]+) GB/s"]
    command = ["--db=run.duckdb", "--json", "--", sys.executable, SUM, *SIZE]
    with allocated(cluster) as job:
        status, out, said = ended(start_trial(cluster, folder, f"--job={job}", *words, *command))
    assert status == 0, said
    assert [each["gpus"] for each in json.loads(out)["placements"]] == [1, 2]
    logs = [log.read_text() for log in (folder / "run-trial").glob("*.log")]
    assert sorted(THREADS.findall("\n".join(logs))) == ["1", "1", "2"]
    marks = ask(folder / "run.duckdb", MARKS)
    assert len(marks) == 3, "each sum sends a mark"
    assert len({tasks for (tasks,) in marks}) == 1
    closed_properly(folder / "run.duckdb")


def start_dask(cluster: Cluster, stack: ExitStack, *words: str) -> None:
    """Start a scheduler on gpu01 and workers by SSH as a person does; they end with their ssh."""
    env = user_env(cluster)
    worker = "worker tcp://gpu01:8786 --nthreads 1 --no-dashboard --no-nanny"
    scheduler = " ".join(("scheduler --port 8786 --no-dashboard", *words))
    for name, command in (("gpu01", scheduler), ("gpu01", worker), ("gpu02", worker), ("gpu02", worker)):
        ssh = subprocess.Popen(
            ["ssh", "-tt", name, f"exec {sys.executable} -m dask {command}"],
            env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        stack.callback(ssh.wait)
        stack.callback(ssh.terminate)
    with Client("tcp://gpu01:8786", timeout=60, set_as_default=False) as client:
        client.wait_for_workers(3, timeout=60)


def test_workers_started_by_ssh_sum_and_are_recorded(cluster: Cluster, folder: Path) -> None:
    sums = [sys.executable, SUM, "--scheduler=tcp://gpu01:8786", "--workers=3", "--close", *SIZE]
    record = ["gswarm-tui", "record", "--nodes=gpu01,gpu02", "--db=run.duckdb", "--", *sums]
    with ExitStack() as stack:
        start_dask(cluster, stack, "--preload gswarm_tui.runs.dask_marks")
        done = subprocess.run(
            record, check=False, env=user_env(cluster), cwd=folder, capture_output=True, text=True, timeout=90
        )
    assert done.returncode == 0, done.stderr
    assert THREADS.findall(done.stdout) == ["3"]
    [(tasks,)] = ask(folder / "run.duckdb", MARKS)
    assert tasks > 36


def make_runs(folder: Path, count: int) -> None:
    """Make recordings of a run, of which each is a little longer than the one before."""
    (folder / "runs").mkdir()
    for number in range(count):
        seconds, info = 20 + number, replace(INFO, uid=f"{number:032x}")
        record(folder / "runs" / f"{number:02}.duckdb", frames(2, seconds), info, ended_at=T0 + seconds)


def by_slurm(cluster: Cluster, folder: Path) -> dict[str, str]:
    """Configure two workers, each on its own node; return the user's environment with this."""
    skip, nodes = '["--mem"]', '["--exclusive", "--exclude=gpu03,gpu04"]'
    options = f"job_directives_skip = {skip}\njob_extra_directives = {nodes}\n"
    config = f'[dask]\njobs = 2\n{options}scheduler_options = {{interface = "bridge"}}\n'
    (folder / "config.toml").write_text(config)
    return user_env(cluster) | {"GSWARM_TUI_CONFIG": str(folder / "config.toml")}


def output_of(words: Sequence[str], folder: Path, env: dict[str, str]) -> str:
    done = subprocess.run(
        ["gswarm-tui", *words], check=False, env=env, cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    return done.stdout


def refuse_plain_clients(cluster: Cluster, command: subprocess.Popen[str]) -> None:
    """Check that the scheduler in a command, which waits for its workers, has TLS and no web server."""

    def listed() -> list[tuple[str, str]]:
        worker = cluster["gpu02"].run(["pgrep", "-af", "dask_worker tls"], check=False)
        return re.findall(r"tls://([0-9.]+):(\d+)", worker.stdout)

    wait_until(listed, "a worker on gpu02")
    host, port = listed()[0]
    assert ssl.get_server_certificate((host, int(port)), timeout=10)
    connect = f"import distributed; distributed.Client('tcp://{host}:{port}', timeout=1)"
    plain = subprocess.run([sys.executable, "-c", connect], check=False, capture_output=True, text=True)
    assert plain.returncode
    assert re.search(r"(OSError|CommClosedError): .*tcp://", plain.stderr.splitlines()[-1])
    sockets = [line for line in cluster.run("ss -tlnpH").stdout.splitlines() if f"pid={command.pid}," in line]
    assert [line.split()[3] for line in sockets if "127.0.0.1:" not in line] == [f"{host}:{port}"]


def kill_while_it_reads(cluster: Cluster) -> None:
    """Kill the worker on gpu02 while it has a recording open."""
    files = ["find", "/proc", "-path", "/proc/[0-9]*/fd/*", "-lname", "*/runs/*.duckdb"]

    def killed() -> bool:
        pids = re.findall(r"/proc/(\d+)/fd/", cluster["gpu02"].run(files, check=False).stdout)
        return bool(pids) and not cluster["gpu02"].run(["kill", "-KILL", pids[0]]).returncode

    wait_until(killed, "a recording that is read")


def figures(row: dict[str, str]) -> dict[str, str]:
    """Return a row of a comparison without where it is from and what it is compared with."""
    others = ("run", "file", "speed_up", "efficiency", "energy_ratio")
    return {name: value for name, value in row.items() if name not in others}


def test_killed_slurm_worker_costs_time_only_and_files_of_one_node_are_read_there(
    cluster: Cluster, folder: Path
) -> None:
    make_runs(folder, 12)
    env = by_slurm(cluster, folder)
    compare = ["compare", "runs/*.duckdb", "--format=csv"]
    expected = list(csv.DictReader(output_of(compare, folder, env).splitlines()))
    cluster["gpu02"].run(["cp", str(folder / "runs" / "11.duckdb"), "/tmp/only-there.duckdb"])
    words = ("gswarm-tui", *compare, "/tmp/only-there.duckdb", "lost.duckdb", "--dask=slurm")
    with subprocess.Popen(
        words, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as command:
        refuse_plain_clients(cluster, command)
        kill_while_it_reads(cluster)
        assert command.poll() is None, "the worker was killed before the end"
        out, said = command.communicate(timeout=120)
    assert command.returncode == 0, said
    assert f"skipped: there is no file {folder}/lost.duckdb" in said
    found = csv.DictReader(out.splitlines())
    *shared, there = sorted(found, key=lambda row: row["file"] == "/tmp/only-there.duckdb")
    assert [figures(row) for row in shared] == [figures(row) for row in expected]
    assert figures(there) == figures(expected[-1])


def test_job_that_slurm_refuses_is_one_sentence(cluster: Cluster, folder: Path) -> None:
    done = subprocess.run(
        ["gswarm-tui", "runs", "--dask=slurm"],  # 4 GB are more than a node has
        check=False, env=user_env(cluster), cwd=folder, capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "gswarm-tui: Dask can't start workers as Slurm jobs" in line
    assert "Requested node configuration is not available" in line


def test_slurm_workers_list_and_sum_runs_as_one_machine_does(cluster: Cluster, folder: Path) -> None:
    make_runs(folder, 4)
    env = by_slurm(cluster, folder)
    for words in (["runs", "runs", "--json"], ["summary", "runs/*.duckdb"]):
        alone = output_of(words, folder, env)
        assert alone.count(".duckdb") == 4
        assert alone == output_of([*words, "--dask=slurm"], folder, env)
    assert sorted(path.name for path in folder.iterdir()) == ["config.toml", "runs"]
    assert not list(Path(env["HOME"], ".cache/gswarm-tui").glob(".dask*"))
    assert not cluster.run("squeue --noheader").stdout
