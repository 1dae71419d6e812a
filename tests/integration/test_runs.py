"""``gswarm-tui runs``: recordings below folders, their figures, the catalogue, filters."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from gswarm_agent.frame import ProcessSample
from gswarm_tui.analysis.comparison import final_mark_values
from gswarm_tui.analysis.periods import load_recordings
from gswarm_tui.analysis.summary_data import summarize
from gswarm_tui.cli import main
from gswarm_tui.fleet.events import Event, EventLogged, FindingChanged, SessionStarted, SessionStopped
from gswarm_tui.runs import catalogue
from gswarm_tui.runs.finding_runs import find_runs
from gswarm_tui.runs.line import RunFinding, RunLine
from gswarm_tui.runs.reading import TABLES, read_lines
from gswarm_tui.store.querying.file_source import FileSource
from tests.integration.exchange_recording import run as rich_recording
from tests.terminal import InTerminal
from tests.tui.test_driver import press_until, wait_until_stopped
from tests.unit.store_recording import (
    INFO,
    T0,
    arrived,
    finding,
    gpu_row,
    introduced,
    process_row,
    record,
)


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin with an empty catalogue in a folder that has no recordings."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def made(
    path: Path,
    *,
    began: float = T0,
    job: str = "4711",
    user: str = "ada",
    node: str = "n1",
    mark: str = '{"loss": 2.5}',
    uid: str | None = None,
) -> Path:
    """Record 150 s of a training session with a finding, a mark and a process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    process = ProcessSample(
        0, 11, user, "train.py", 0, 0, process_row(gpu_memory_mib=9), framework="torch 2.14.1", nccl="2.27.3"
    )
    rows = [gpu_row(util_pct=90, power_w=600, sm_clock_mhz=1900), gpu_row(util_pct=0, power_w=100)]
    events: list[Event] = [introduced(node, at=began)]
    events += [
        arrived(seq, rows, node, ts=began + seq, processes=(process,) if seq % 5 == 0 else None)
        for seq in range(1, 151)
    ]
    events += [
        SessionStarted("1", began + 10, "train-7b", began + 10),
        SessionStopped("1", began + 150, began + 150),
        EventLogged(began + 20, "mark", "info", "step", node, None, mark),
        FindingChanged(began + 30, finding(1, node=node, nodes=(node,), since=began + 10)),
        FindingChanged(began + 30, finding(2, kind="xid", severity="fault", node=node, gpu_hours=0.0)),
    ]
    info = replace(INFO, started_at=began, slurm_job_id=job, user_name=user, uid=uid)
    record(path, events, info, ended_at=began + 150)
    return path


def runs(capsys: pytest.CaptureFixture[str], *words: str | Path) -> list[Mapping[str, Any]]:
    """Return what the command prints as JSON."""
    assert main(["runs", *map(str, words), "--json"]) == 0
    listed: list[Mapping[str, Any]] = json.loads(capsys.readouterr().out)
    return listed


def test_a_line_has_the_figures_of_summary(tmp_path: Path) -> None:
    for path in (made(tmp_path / "a.duckdb"), rich_recording(tmp_path / "b.duckdb", 90)):
        with closing(FileSource(path, for_people=False)) as source:
            (line,), (period,) = read_lines(source), load_recordings(source)
            whole = summarize(source, period).whole
            assert whole is not None
            assert (line.gpus, line.energy_j, line.util_mean_pct, line.coverage) == (
                whole.gpus,
                whole.energy_j,
                whole.util_mean_pct,
                whole.coverage,
            )
            assert line.seconds == period.seconds
            assert line.marks == final_mark_values(source, period)


def test_macros_in_a_file_change_no_figure(tmp_path: Path) -> None:
    lines: list[RunLine] = []
    for path in (made(tmp_path / "a.duckdb"), made(tmp_path / "b.duckdb")):
        if lines:
            with duckdb.connect(str(path)) as connection:
                for name in ("avg(x)", "sum(x)", "coalesce(x, y)", "regexp_replace(a, b, c, d)", "unnest(x)"):
                    with contextlib.suppress(duckdb.ParserException):
                        connection.execute(f"CREATE MACRO {name} AS 99")
        with closing(FileSource(path, for_people=False, tables=TABLES)) as source:
            lines += read_lines(source)
    assert replace(lines[1], path="", size=0, mtime_ns=0) == replace(lines[0], path="", size=0, mtime_ns=0)


def test_a_line_describes_its_run(tmp_path: Path) -> None:
    with closing(FileSource(made(tmp_path / "a.duckdb"), for_people=False)) as source:
        (line,) = read_lines(source)
    assert (line.name, line.sessions, line.job, line.state) == ("train-7b", ("train-7b",), "4711", "finished")
    assert line.findings == (
        RunFinding("xid", "fault", "n1", 1, "GPU-n1-1", 0.0),
        RunFinding("thermal", "waste", "n1", 1, "GPU-n1-1", 0.25),
    )
    assert line.software == ("torch 2.14.1", "NCCL 2.27.3")
    assert (line.sm_clock_mhz, line.marks) == (1900.0, {"loss": 2.5})


def test_runs_below_folders_are_listed_newest_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older = made(tmp_path / "runs/a/old.duckdb")
    newer = made(tmp_path / "runs/b/new.duckdb", began=T0 + 1000, job="4712", user="eve", node="gpu03")
    made(tmp_path / "runs/.hidden/x.duckdb", began=T0 + 2000)
    every = runs(capsys, tmp_path / "runs")
    assert [line["file"] for line in every] == [str(newer), str(older)]
    found = [
        [line["slurm_job_id"] for line in runs(capsys, tmp_path / "runs", *words)]
        for words in (
            ["--sort", "job"], ["--limit", "1"], ["job:4711"], ["--job", "4711"], ["--user", "eve"],
            ["name:train*", "node:gpu0?"], ["finding:ther*"], ["finding:hang"],
            ["--since", "2027-01-15T08:10Z"],
        )
    ]  # fmt: skip
    assert found == [
        ["4711", "4712"], ["4712"], ["4711"], ["4711"], ["4712"], ["4712"], ["4712", "4711"], [], ["4712"]
    ]  # fmt: skip
    assert main(["runs", str(tmp_path / "runs")]) == 0
    assert "xid gpu03:1 +1" in capsys.readouterr().out


def test_known_runs_are_read_once_and_again_when_they_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(tmp_path / "runs/a.duckdb")
    first = runs(capsys, path.parent)
    file = tmp_path / "cache/gswarm-tui/runs.jsonl"
    file.write_bytes(
        b'{"version": 99}\nnonsense\n\xff\n' + file.read_bytes() + b'{"version": 1, "path": "/to'
    )
    with monkeypatch.context() as patch:
        patch.setattr(FileSource, "query", None)
        assert runs(capsys, path.parent) == first
        # Without a folder, what is known is listed wherever it is.
        assert runs(capsys) == first
    record(path, [introduced()], replace(INFO, started_at=T0 + 500), ended_at=T0 + 600)
    assert [line["recording_id"] for line in runs(capsys)] == [2, 1]
    assert len(catalogue.load()[str(path)]) == 2
    path.unlink()
    assert runs(capsys) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": None}, {"started_at": "x"}, {"started_at": 1e300}, {"name": 5}, {"nodes": 5}, {"nodes": [5]},
        {"gpus": "8"}, {"run": ["x"]}, {"marks": None}, {"marks": {"loss": "low"}}, {"findings": [{}]},
    ],
)  # fmt: skip
def test_a_line_with_wrong_types_is_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: dict[str, object]
) -> None:
    path = made(tmp_path / "runs/a.duckdb")
    first = runs(capsys, path.parent)
    file = tmp_path / "cache/gswarm-tui/runs.jsonl"
    file.write_text(json.dumps(json.loads(file.read_text()) | wrong) + "\n" + file.read_text())
    assert runs(capsys, path.parent) == first


def test_each_file_is_in_the_catalogue_before_the_next_is_opened(tmp_path: Path) -> None:
    paths = [made(tmp_path / f"runs/{number}.duckdb", began=T0 + number) for number in range(3)]
    link = tmp_path / "runs/link.duckdb"
    os.link(paths[0], link)
    known: dict[Path, int] = {}

    def opened(path: Path) -> FileSource:
        known[path] = len(catalogue.load())
        return FileSource(path, for_people=False, tables=TABLES)

    assert len(find_runs([*paths, link], opened, lambda _path, _why: None)) == 3
    # Two are read at the same time, and a link to one that was read isn't opened.
    assert known.keys() == {*paths}
    assert known[paths[2]] >= 1
    assert catalogue.load().keys() == {*map(str, paths)}


def test_a_catalogue_that_is_mostly_outdated_is_rewritten(tmp_path: Path) -> None:
    with closing(FileSource(made(tmp_path / "a.duckdb"), for_people=False)) as source:
        (line,) = read_lines(source)
    gone = replace(line, path=str(tmp_path / "gone.duckdb"))
    catalogue.add([gone])
    for time in range(120):
        catalogue.add([replace(line, mtime_ns=time)])
    assert catalogue.load() == {line.path: [replace(line, mtime_ns=119)]}
    assert len((tmp_path / "cache/gswarm-tui/runs.jsonl").read_text().splitlines()) == 1


def test_an_exported_run_is_read_and_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs").mkdir()
    path, dataset = rich_recording(tmp_path / "runs/a.duckdb"), tmp_path / "runs/a-export"
    assert main(["export", "recording 1", "--db", str(path), "--format", "parquet", "-o", str(dataset)]) == 0
    capsys.readouterr()
    (exported,) = runs(capsys, dataset)
    assert exported["file"].startswith(f"{dataset}/recordings/run=")
    (line,) = runs(capsys, path.parent)
    assert line["file"] == str(path)
    differ = {name for name in line if line[name] != exported[name]}
    assert differ <= {"file", "file_bytes", "name"}


def test_runs_in_a_dataset_have_the_names_of_their_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(made(tmp_path / f"runs/{name}.duckdb", uid=name)) for name in "ab"]
    assert main(["export", "--append", str(tmp_path / "all.parquet"), *files]) == 0
    capsys.readouterr()
    exported, recorded = (
        sorted(line["run"] for line in runs(capsys, tmp_path / place)) for place in ("all.parquet", "runs")
    )
    # Both started in the same second, so only the hash of their identifiers tells them apart.
    assert len(set(exported)) == 2
    assert exported == recorded


def test_a_run_is_replayed_in_the_terminal_of_the_live_screen_while_recording_goes_on(tmp_path: Path) -> None:
    made(tmp_path / "here/old.duckdb")
    command = [sys.executable, "-m", "gswarm_tui", "--demo", "1x2", "--db", "live.duckdb"]
    with InTerminal(command, size=(80, 24), folder=tmp_path / "here") as live:
        live.wait_for("● rec")
        live.press("R")
        live.wait_for("2 runs as of")
        live.press("\r")
        live.wait_for("15 Jan 2027")
        # The shell gets the whole group back, and the replay the terminal.
        live.press("\x1a")
        wait_until_stopped(live.pid)
        os.killpg(live.pid, signal.SIGCONT)
        press_until(live, "4", "temperature")
        live.press("q")
        live.wait_for("2 runs as of")
        press_until(live, "\x1b", "SIMULATED   sim01")
        live.press("q")
        assert live.exit_status() == 0
        assert live.settings()[:-1] == live.first_settings[:-1]
    with duckdb.connect(str(tmp_path / "here/live.duckdb"), read_only=True) as recorded:
        frames = recorded.execute("SELECT seq FROM host_samples ORDER BY seq").fetchall()
    assert frames == [(seq,) for seq in range(1, len(frames) + 1)]


def test_what_cannot_be_read_is_named_and_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = made(tmp_path / "runs/good.duckdb")
    folder = good.parent
    (folder / "text.duckdb").write_text("no database")
    (folder / "cut.duckdb").write_bytes(good.read_bytes()[:20_000])
    os.mkfifo(folder / "pipe.duckdb")
    shutil.copy(good, folder / "odd.duckdb")
    with duckdb.connect(str(folder / "odd.duckdb")) as connection:
        connection.execute("UPDATE recordings SET started_at = NULL")
    (folder / "export/recordings/run=x").mkdir(parents=True)
    (folder / "loop.duckdb").symlink_to("loop.duckdb")
    (folder / "a\x1b[31m.duckdb").write_text("")
    assert main(["runs", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert "train-7b" in out
    assert "odd.duckdb: has values that no recording has\n" in err
    assert "\x1b" not in err
    assert err.count("skipped") == 7
    assert main(["runs", str(folder / "none")]) == 2
    assert main(["runs", str(folder / "text.duckdb")]) == 1


def test_a_run_is_compared_with_former_ones_and_lemons_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, speed in enumerate((500, 505, 495, 400)):
        made(
            tmp_path / f"runs/{number}.duckdb",
            began=T0 + 1000 * number,
            mark=f'{{"loss": 2.5, "images_per_s": {speed}}}',
        )
    (lemon,) = runs(capsys, tmp_path / "runs", "--nodes")
    assert (lemon["node"], lemon["gpu_index"], lemon["named_in"], lemon["runs"]) == ("n1", 1, 4, 4)
    assert (lemon["kinds"], lemon["last_on"], lemon["uuid"]) == ("thermal", "2027-01-15", "GPU-n1-1")
    assert main(["runs", "--nodes"]) == 0
    assert capsys.readouterr().out.endswith("\n#SBATCH --exclude=n1\n")
    db = f"--db={tmp_path / 'runs/3.duckdb'}"
    usual = "images_per_s 400, usual images_per_s 500 (median of 3 former runs)"
    assert main(["diagnose", db]) == 0
    shown = capsys.readouterr().out
    assert f"usual     {usual}\n" in shown
    assert "lemons    n1:1 in 4 of 4 runs (thermal), last on 2027-01-15\n" in shown
    assert f"train-7b: {usual} · 20 % less · differs: nothing known in nodes, GPUs, " in " ".join(
        shown.split()
    )
    assert main(["diagnose", db, "--json"]) == 0
    (slower,) = [
        one for one in json.loads(capsys.readouterr().out)["findings"] if one["kind"][:6] == "slower"
    ]
    assert (slower["severity"], slower["node"], slower["nodes"]) == ("waste", None, ["n1"])
