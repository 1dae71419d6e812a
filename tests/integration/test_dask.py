"""``--dask`` with two workers that have different addresses and folders, as two nodes have local disks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from distributed import Client, LocalCluster

from gswarm_tui.cli import main
from gswarm_tui.runs import dask_work
from gswarm_tui.runs.dask_work import WantedRun
from tests.unit.store_recording import INFO, T0, arrived, gpu_row, introduced, record

LOCAL = "/proc/self/cwd/local.duckdb"
"""A path that is a file of its own for each worker."""


@dataclass(frozen=True)
class Workers:
    """The scheduler as commands take it, and the workers by their folders."""

    dask: str
    by_folder: dict[str, subprocess.Popen[bytes]]


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    for name in ("HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        scheduler = stack.enter_context(LocalCluster(n_workers=0, dashboard_address=":0"))
        address, started = scheduler.scheduler_address, {}
        for number, name in enumerate(("a", "b"), 2):
            (folder := tmp_path / name).mkdir()
            words = f"--host 127.0.0.{number} --nthreads 1 --no-dashboard --no-nanny --local-directory ."
            command = [sys.executable, "-m", "dask", "worker", address, *words.split()]
            started[name] = stack.enter_context(
                subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
            )
            stack.callback(started[name].kill)
        with Client(address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
        yield Workers(f"--dask={address}", started)


def make_run(path: Path, seconds: int) -> None:
    frames = (arrived(i, [gpu_row(util_pct=i)] * 2, ts=T0 + i) for i in range(1, seconds + 1))
    record(path, [introduced(), *frames], replace(INFO, uid=f"{path}"), ended_at=T0 + seconds)


def test_workers_summarise_files_and_datasets_as_one_machine_does(
    workers: Workers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seconds in (20, 30, 40):
        make_run(tmp_path / f"{seconds}.duckdb", seconds)
    assert main(["export", "--append", "all.parquet", "30.duckdb", "40.duckdb"]) == 0
    runs = ["./20.duckdb", "all.parquet"]
    capsys.readouterr()
    for command in ("summary", "compare"):
        printed = []
        for words in ([], [workers.dask]):
            assert main([command, *runs, *words]) == 0
            printed.append(capsys.readouterr().out)
        assert printed[0] == printed[1]
        assert printed[0].count("run=") == (2 if command == "summary" else 4)
    assert main(["summary", workers.dask]) == 2
    assert "--dask needs files, such as 'runs/*.duckdb'.\n" in capsys.readouterr().err


def test_different_files_of_one_path_on_two_hosts_are_two_runs(
    workers: Workers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "a" / "local.duckdb", 20)
    make_run(tmp_path / "b" / "local.duckdb", 30)
    for command in ("runs", "compare"):
        assert main([command, workers.dask, LOCAL, "--format=csv"]) == 0
        assert capsys.readouterr().out.count(LOCAL) == 2


def test_files_of_a_host_whose_workers_have_ended_are_given_up(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "shared.duckdb", 20)
    make_run(tmp_path / "b" / "local.duckdb", 30)
    seen = dask_work._seen

    def seen_before_the_end(client: Client, listed: Callable[[], Iterable[WantedRun]]) -> object:
        found = seen(client, listed)
        workers.by_folder["b"].kill()
        return found

    monkeypatch.setattr(dask_work, "_seen", seen_before_the_end)
    monkeypatch.setattr(dask_work, "_LOST_S", 0.0)
    assert main(["runs", workers.dask, "shared.duckdb", LOCAL, "--format=csv"]) == 0
    printed = capsys.readouterr()
    assert printed.out.count(".duckdb") == 1
    assert f"skipped: {LOCAL}: all Dask workers that see it have ended.\n" in printed.err
