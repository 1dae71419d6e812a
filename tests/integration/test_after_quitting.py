"""Lines printed after quitting, and plots and reports written from inside the app."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from gswarm_tui import cli
from gswarm_tui.run.quit_summary import next_commands, recording_figures
from tests.recorded import recorded
from tests.tui.scene import Scene


def two_sessions(made: Scene) -> None:
    made.connect().advance(5)
    made.hub.start_session("train")
    made.advance(20)
    made.hub.stop_session(made.fleet.sessions.running[0].session_id)
    made.hub.start_session("1")
    made.advance(5)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("recorded") / "run.duckdb"
    recorded(path, Scene(2, 2), two_sessions)
    return path.read_bytes()


@pytest.fixture
def path(recording: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a run.duckdb"
    path.write_bytes(recording)
    return path


def test_figures_are_those_of_the_summary(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = recording_figures(path, 1)
    assert cli.main(["summary", "recording 1", "--db", str(path), "--format", "csv"]) == 0
    header, *rows = (row.split(",") for row in capsys.readouterr().out.splitlines())
    summary = [dict(zip(header, row, strict=True)) for row in rows]
    (whole,) = (row for row in summary if row["scope"] == "all")
    worst = min(
        (row for row in summary if row["scope"] == "gpu"), key=lambda row: float(row["util_mean_pct"])
    )
    assert line.startswith("recorded 30 s, 4 GPUs: ")
    assert f"mean util {float(whole['util_mean_pct']):.0f} %" in line
    gpu = f"{worst['node']}:{worst['gpu_index']}"
    assert line.endswith(f"worst {gpu} ({float(worst['util_mean_pct']):.0f} %)")


def test_figures_of_a_file_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "odd.duckdb").write_text("no database")
    assert recording_figures(tmp_path / "odd.duckdb", 1) == ""
    assert recording_figures(tmp_path / "gone.duckdb", 1) == ""


def test_recording_without_samples_has_a_line_of_its_own(tmp_path: Path) -> None:
    recorded(tmp_path / "run.duckdb", Scene(1, 1), lambda made: made.advance(3))
    assert recording_figures(tmp_path / "run.duckdb", 1) == "recorded 3 s, without a GPU sample"


def test_next_command_can_be_pasted_into_a_shell(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = next_commands(path)
    assert line == "next: gswarm-tui summary --db='a run.duckdb'   (or replay, report)"
    command = line.removeprefix("next: ").partition("   ")[0]
    assert cli.main(shlex.split(command)[1:]) == 0
    assert "a run.duckdb" in capsys.readouterr().out
