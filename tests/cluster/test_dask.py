"""Dask across the nodes, started by Slurm and by SSH, recorded and compared."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from distributed import Client

from tests.cluster.cluster import Cluster
from tests.cluster.killed_profiles import remove_what_is_left
from tests.cluster.person import ask, closed_properly, user_env
from tests.cluster.running import wait_until
from tests.cluster.standin import GpuProcess, Scenario
from tests.cluster.test_findings import Recording
from tests.cluster.test_trial import allocated, ended, start_trial
from tests.integration.test_compare import frames
from tests.unit.store_recording import INFO, T0, record

SUM = str(Path(__file__).parents[2] / "contrib" / "dask_sum.py")
THREADS = re.compile(r"on (\d+) threads: [0-9.]+ s")
SIZE = ("--size=6000", "--chunk=1000")
MARKS = """
SELECT value FROM mark_values WHERE mark = 'dask tasks' AND key = 'dask_tasks' ORDER BY ts
"""
KINDS = """
SELECT split_part(key, '/', 2) AS kind,
       sum(value) FILTER (key LIKE 'dask_compute_s/%') AS seconds,
       sum(value) FILTER (key LIKE 'dask_tasks/%') AS tasks
FROM mark_values WHERE key LIKE 'dask_%/%'
  AND ts IN (SELECT ts FROM mark_values WHERE key = 'dask_unfinished' AND value = 0)
GROUP BY kind ORDER BY seconds DESC
"""
NODES = ("gpu01", "gpu02")


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


@contextmanager
def dask_by_ssh(cluster: Cluster) -> Iterator[None]:
    """Start a scheduler on gpu01 and a worker there and on gpu02 as a person does, with GPUs that wait."""
    config = cluster.home / ".config" / "dask" / "marks.yaml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text("distributed: {scheduler: {preload: [gswarm_tui.runs.dask_marks]}}\n")
    words = [sys.executable, "-m", "dask", "ssh", "--nthreads=4", *NODES]
    silent = subprocess.DEVNULL
    dask = subprocess.Popen(words, env=user_env(cluster), stdin=silent, stdout=silent, stderr=silent)
    try:
        with Client("tcp://gpu01:8786", timeout=60, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
            pids = client.run(lambda: (os.uname().nodename, os.getpid())).values()
        for name, pid in pids:
            scenario = Scenario.of(name, 1)
            scenario.gpus[0].processes = [GpuProcess(pid, 60_000, sm_percent=20)]
            scenario.gpus[0].utilization_percent = 20
            scenario.write(cluster[name].scenario)
        yield
    finally:
        dask.send_signal(signal.SIGINT)
        dask.wait(60)
        config.unlink()
        for name in NODES:
            Scenario.of(name, cluster[name].gpus).write(cluster[name].scenario)


def test_dask_ssh_workers_sum_and_wait_for_their_scheduler(cluster: Cluster, folder: Path) -> None:
    # One thread works, and seven have nothing to do.
    whole = ["--size=2000", "--chunk=2000", "--scheduler=tcp://gpu01:8786", "--workers=2"]
    os.mkfifo(folder / "seen")
    # The recording goes on until the finding has been seen.
    words = ["bash", "-c", '"$@" && cat seen', "sum", sys.executable, SUM, *whole]
    recording = Recording(cluster, folder / "run.duckdb", folder / "record.log")
    # Rules read a mark for 60 s, which are 15 s here.
    recording.env["GSWARM_TUI_RULES_SPEED"] = "4"
    command = ["gswarm-tui", "record", f"--nodes={','.join(NODES)}", "--interval=1"]
    with dask_by_ssh(cluster), recording.log.open("w") as log:
        recorder = subprocess.Popen(
            [*command, f"--db={recording.db}", "--", *words],
            env=recording.env, cwd=folder, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            found = ("waste", "scheduler_waits", None, None, None)
            log_file = recording.log
            wait_until(lambda: "2 nodes send data" in log_file.read_text(), "data of both nodes", log_file)
            wait_until(lambda: found in recording.found(), "the finding", log_file)
            (folder / "seen").write_text("")
        finally:
            recorder.send_signal(signal.SIGTERM)
            recorder.wait(60)
    assert THREADS.findall(recording.log.read_text()) == ["8"]
    # A slow sum also sends marks before its end.
    *_, (tasks,) = ask(recording.db, MARKS)
    by_kind = ask(recording.db, KINDS)
    assert by_kind[0][0].startswith("standard_normal-sum")
    assert sum(number for _, _, number in by_kind) == tasks
    closed_properly(recording.db)


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


def test_slurm_workers_summarise_runs_as_one_machine_does(cluster: Cluster, folder: Path) -> None:
    make_runs(folder, 4)
    env = by_slurm(cluster, folder)
    alone = output_of(["summary", "runs/*.duckdb"], folder, env)
    assert alone.count(".duckdb") == 4
    assert alone == output_of(["summary", "runs/*.duckdb", "--dask=slurm"], folder, env)
    assert sorted(path.name for path in folder.iterdir()) == ["config.toml", "runs"]
    assert not list(Path(env["HOME"], ".cache/gswarm-tui").glob(".dask*"))
    assert not cluster.run("squeue --noheader").stdout
