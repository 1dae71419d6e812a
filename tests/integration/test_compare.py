"""``gswarm-tui compare``: the formulas and the output."""

from __future__ import annotations

import csv
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gswarm_tui.analysis.comparison import (
    BASIS,
    ComparedRun,
    comparison_notes,
    comparison_result,
    comparison_table,
    totals,
)
from gswarm_tui.analysis.periods import Period
from gswarm_tui.analysis.summary_data import Figures, Summary
from gswarm_tui.cli import main
from gswarm_tui.fleet.events import Event, EventLogged, SessionStarted, SessionStopped
from gswarm_tui.plotting.over_time import series_of
from tests.unit.store_recording import INFO, T0, arrived, gpu_row, introduced, record

GPU = Figures(
    scope="gpu", node="n1", gpu_index=0, rank=0, gpus=1, samples=100, coverage=1.0, util_mean_pct=90.0,
    sm_active_mean_pct=80.0, tensor_active_mean_pct=40.0, dram_active_mean_pct=50.0, of_peak=0.38,
    util_median_pct=90.0, util_p95_pct=95.0, util_max_pct=100, power_mean_w=600.0, power_max_w=700.0,
    mem_used_max_mib=40_000, mem_total_mib=81_559, temp_max_c=60, mem_temp_max_c=70, busy_s=95.0, idle_s=5.0,
    energy_j=60_000.0, energy_kwh=60_000 / 3.6e6, throttle_power_s=0.0, throttle_thermal_s=0.0,
    throttle_brake_s=0.0, bubbles=5, bubble_s=5.0, bubble_share=0.05, bubble_longest_s=1.0,
    host_cpu_max_pct=None, host_memory_max_mib=None, host_memory_total_mib=None,
)  # fmt: skip


def run(label: str, *changes: dict[str, Any], seconds: float = 100, **of_all: Any) -> ComparedRun:
    """Return a run with one GPU per set of changes to ``GPU`` (without any: one GPU), and their totals."""
    gpus = tuple(replace(GPU, gpu_index=i, **change) for i, change in enumerate(changes or ({},)))
    means = [gpu.util_mean_pct or 0 for gpu in gpus]
    usual = {"util_mean_pct": sum(means) / len(means), "gpus": len(gpus)}
    whole = replace(GPU, scope="all", **(usual | of_all))
    began = datetime(2026, 3, 2)  # noqa: DTZ001 (as the database has it)
    ended = began + timedelta(seconds=seconds)
    period = Period(1, 1, label, began, ended, ended, "stopped", "", "")
    return ComparedRun(label, "run.duckdb", Summary(period, False, whole, (), gpus, ()), whole, {}, label)


def test_running_session_has_no_speed_up() -> None:
    ended, going_on = run("ended"), run("going on", seconds=300)
    going_on = replace(going_on, summary=replace(going_on.summary, running=True))
    rows = {row[0]: row[1:] for row in comparison_table([ended, going_on]).rows}
    assert rows["duration"] == ("00:01:40", "00:05:00 so far")
    assert [rows[name][1] for name in ("speed-up", "efficiency", "energy ratio")] == ["–", "–", "–"]
    assert list(comparison_notes([ended, going_on])) == [
        BASIS,
        "Still running: going on; figures are as of now, without speed-up until the end.",
    ]
    assert [row["speed_up"] for row in comparison_result([ended, going_on]).dicts()] == [1.0, None]


def test_idle_gpu_lowers_the_balance() -> None:
    idle = {"util_mean_pct": 0.0}
    assert run("even", {}, {}).balance == 1.0
    assert run("uneven", {}, {}, {}, idle).balance == pytest.approx(0.75)
    assert run("idle", idle).balance is None


def frames(gpus: int, seconds: int) -> Iterator[Event]:
    yield introduced(gpus=gpus)
    for i in range(seconds + 1):
        row = gpu_row(util_pct=90, power_w=500, energy_mj=i * 500_000, mem_used_mib=20_000)
        yield arrived(i + 1, [row] * gpus, ts=T0 + i)
    yield EventLogged(T0 + 1, "mark", "info", "epoch 1", detail='{"loss": 3.5, "note": "x"}')
    yield EventLogged(
        T0 + 2, "mark", "info", "epoch 2", detail=f'{{"loss": {gpus / 2}, "rank": 3, "local_rank": 1}}'
    )
    yield SessionStarted("s", T0, "train", T0)
    yield SessionStopped("s", T0 + seconds, T0 + seconds)


@pytest.fixture
def two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    record(tmp_path / "one.duckdb", frames(1, 40), replace(INFO, uid="one"), ended_at=T0 + 40)
    record(tmp_path / "two.duckdb", frames(2, 25), replace(INFO, uid="two"), ended_at=T0 + 25)
    return tmp_path


def test_runs_of_different_files_are_compared(two_files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "one.duckdb:train", "two.duckdb:train"]) == 0
    heads, _, *rows = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    assert heads == ["one", "two"]
    values = {" ".join(row[:-2]): tuple(row[-2:]) for row in rows[:14]}
    assert values["file"] == ("one.duckdb", "two.duckdb")
    assert values["GPUs"] == ("1", "2")
    assert values["speed-up 1.00 ×"] == ("1.60", "×")
    assert values["efficiency 100.0 %"] == ("80.0", "%")
    assert values["energy ratio 1.00 ×"] == ("1.25", "×")
    lines = [" ".join(row) for row in rows]
    assert "loss 0.5 1" in lines
    assert BASIS in " ".join(lines)


def test_comparison_is_written_as_data(two_files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "one.duckdb", "two.duckdb", "--format", "csv"]) == 0
    first, second = csv.DictReader(capsys.readouterr().out.splitlines())
    names = ("run", "duration_s", "gpus", "speed_up", "efficiency", "energy_j", "energy_ratio", "mark_loss")
    assert [first[name] for name in names] == ["one", "40.0", "1", "1.0", "1.0", "20000.0", "1.0", "0.5"]
    assert [second[name] for name in names][:5] == ["two", "25.0", "2", "1.6", "0.8"]


def test_many_runs_have_a_line_each_and_unreadable_files_are_skipped(
    two_files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs := two_files / "runs" / "march").mkdir(parents=True)
    for number in range(6):
        (runs / f"run{number}.duckdb").write_bytes(Path("two.duckdb").read_bytes())
    (runs / "torn.duckdb").write_bytes(b"torn")
    assert main(["compare", "one.duckdb", "runs/**/*.duckdb"]) == 0
    printed = capsys.readouterr()
    heads, _, first, *others = printed.out.splitlines()[:9]
    assert heads.split()[:4] == ["session", "file", "duration", "speed-up"]
    assert first.split()[:2] == ["train", "one.duckdb"]
    assert [line.split()[1] for line in others] == [f"runs/march/run{number}.duckdb" for number in range(6)]
    assert all("1.60 ×" in line for line in others)
    assert "skipped: runs/march/torn.duckdb is not a DuckDB file.\n" in printed.err
    assert main(["compare", "runs/*/torn*.duckdb", "one.duckdb"]) == 2
    assert "all runs are the same one, train in one.duckdb; name" in capsys.readouterr().err
    assert main(["compare", "runs/none*.duckdb"]) == 2
    assert 'no file matches "runs/none*.duckdb"; name others.' in capsys.readouterr().err


def test_runs_of_several_files_are_summarised_with_a_line_for_all(
    two_files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["summary", "one.duckdb", "two*.duckdb:train"]) == 0
    heads, _, first, second, last = capsys.readouterr().out.splitlines()
    assert heads.split()[:4] == ["session", "file", "duration", "utilisation"]
    assert "speed-up" not in heads
    assert first.split()[:2] + second.split()[:2] == ["train", "one.duckdb", "train", "two.duckdb"]
    assert last.split()[:5] == ["all", "2", "–", "65", "s"]
    assert "12.5 Wh" in last
    assert main(["summary", "one.duckdb", "two.duckdb", "--by", "gpu"]) == 0
    _, _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[:2] for row in rows] == [["one", "n1:0"], ["two", "n1:0"], ["two", "n1:1"]]
    assert main(["summary", "one.duckdb", "two.duckdb", "--format", "csv"]) == 0
    data = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [(row["run"], row["energy_j"]) for row in data] == [("one", "20000.0"), ("two", "25000.0")]


def test_the_line_for_all_counts_copies_of_a_run_once(
    two_files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy("one.duckdb", "copy.duckdb")
    assert main(["export", "--append", "all.parquet", "one.duckdb"]) == 0
    capsys.readouterr()
    assert main(["summary", "one.duckdb", "copy.duckdb", "two.duckdb", "all.parquet"]) == 0
    printed = capsys.readouterr()
    *rows, last = printed.out.splitlines()[2:]
    assert len(rows) == 4
    assert last.split()[:2] == ["all", "2"]
    assert "12.5 Wh" in last
    assert "2 of 4 lines repeat a run; the line for all counts each run once." in printed.err


def test_quantiles_of_all_runs_are_those_of_all_samples_at_once(
    two_files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random, runs = Random(7), f"{two_files}/every*.duckdb"
    for every_s in (1, 3, 5):
        events: list[Event] = [introduced(gpus=2)]
        for i in range(200):
            rows = [gpu_row(util_pct=random.choice((None, random.randrange(20 * every_s)))) for _ in range(2)]
            events.append(arrived(i + 1, rows, ts=T0 + i * every_s))
        info = replace(INFO, uid=f"{every_s}")
        record(two_files / f"every{every_s}.duckdb", events, info, ended_at=T0 + 1000)
    seconds = "SELECT util_pct, unnest(range(interval_ms // 1000)) FROM samples WHERE util_pct IS NOT NULL"
    at_once = f"SELECT unnest(quantile_disc(util_pct, [0.5, 0.95])) AS pct FROM ({seconds})"
    assert main(["sql", at_once, "--db", runs, "--json"]) == 0
    expected = [f"{row['pct']} %" for row in json.loads(capsys.readouterr().out)]
    assert main(["summary", runs, "--format=markdown"]) == 0
    names, *_, last = (
        line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if "|" in line
    )
    assert [last[names.index(name)].strip() for name in ("median util", "p95 util")] == expected


def test_report_of_several_files_is_one_page(two_files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy("one.duckdb", "<b>.duckdb")
    assert main(["report", "*.duckdb"]) == 0
    assert capsys.readouterr().out == "runs.html\n"
    page = Path("runs.html").read_text()
    assert "<h1>3 runs</h1>" in page
    assert [page.count(text) for text in ("<td>all 2</td>", "<h2>two</h2>", "<dt>utilisation</dt>")] == [
        1,
        1,
        3,
    ]
    assert "<h2>&lt;b&gt;</h2>" in page
    assert "<b>" not in page


def test_runs_of_a_dataset_have_the_figures_of_their_files(
    two_files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "--append", "both.parquet", "*.duckdb"]) == 0
    capsys.readouterr()
    assert main(["compare", "*.duckdb", "both.parquet", "--format", "csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    figures = [{key: row[key] for key in row if key not in ("run", "file")} for row in rows]
    assert sorted(figures[2:], key=lambda row: row["gpus"]) == figures[:2]
    assert main(["sql", "FROM samples", "--db", "both.parquet"]) == 2
    assert "both.parquet is a Parquet dataset, which DuckDB reads itself" in capsys.readouterr().err
    assert main(["summary", "x" * 300]) == 2


def test_means_of_all_runs_go_by_measured_time() -> None:
    short, long = run("short", {"util_mean_pct": 50.0}), run("long", {"util_mean_pct": 100.0}, busy_s=295.0)
    assert totals([short, long])["utilisation"] == "88 %"
    unmeasured = replace(long, whole=replace(long.whole, util_mean_pct=None))
    assert totals([short, unmeasured])["utilisation"] == "50 %"


def test_figures_of_runs_are_plotted_by_their_start(
    two_files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(two_files / "three.duckdb", [introduced(), arrived(1, [gpu_row(util_pct=5)] * 2)], ended_at=T0 + 9)
    words = ["plot", "--over-time", "loss,energy_kwh", "*.duckdb", "-o", "trend.svg"]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert printed.out == "trend.svg\n"
    assert "1 run of 3 without loss left out." in printed.err
    drawn = Path("trend.svg").read_text()
    assert all(f">{text}<" in drawn for text in ("loss", "energy_kwh", "1 GPU", "2 GPUs"))
    runs = [replace(run("a"), marks={"loss": 0.5}), run("b")]
    assert [point[1:] for point in series_of(runs, ["loss"])["loss"]] == [(1, 0.5)]
    assert main([*words[:2], "los", "one.duckdb"]) == 2
    assert 'no run has the figure "los"; perhaps you meant loss.' in capsys.readouterr().err
