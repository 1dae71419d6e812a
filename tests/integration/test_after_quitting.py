"""Lines printed after quitting, and plots and reports written from inside the app."""

from __future__ import annotations

import asyncio
import shlex
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gswarm_tui import cli
from gswarm_tui.analysis.queries import RecordingQueries
from gswarm_tui.common.errors import UserError
from gswarm_tui.fleet.sessions import Session
from gswarm_tui.run.quit_summary import next_commands, recording_figures
from gswarm_tui.run.session_files import write_session_files
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.tui.app import GswarmApp
from tests.recorded import Tap, begin, recorded
from tests.tui.conftest import screen_text, shows
from tests.tui.scene import BEGINNING, Scene


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


def test_plot_and_report_get_free_names(path: Path) -> None:
    (path.parent / "train.pdf").write_text("kept")
    with closing(FileSource(path)) as source:
        number = RecordingQueries(source).reference(Session("", "train", BEGINNING + 5))
        assert number == "train", "another session is named 1"
    assert write_session_files(path, number, "train") == ("train-2.pdf", "train-2.html")
    assert (path.parent / "train.pdf").read_text() == "kept"
    assert (path.parent / "train-2.pdf").read_bytes().startswith(b"%PDF")
    assert "train" in (path.parent / "train-2.html").read_text()


def test_failed_plot_reports_the_reason_of_the_command(path: Path) -> None:
    with pytest.raises(UserError, match='has no session "trian"; perhaps you meant train'):
        write_session_files(path, "trian", "trian")


@pytest.mark.parametrize("keys", [("S", "down"), ("S", "down", "enter")])
async def test_key_writes_plot_and_report_of_the_session(path: Path, keys: tuple[str, ...]) -> None:
    asked: list[tuple[str, str]] = []

    def write_files(session: str, name: str) -> tuple[str, ...]:
        asked.append((session, name))
        if len(asked) > 1:
            raise UserError("the disk is full")
        return f"{name}.pdf", f"{name}.html"

    made = Scene(2, 2)
    two_sessions(made)
    with closing(FileSource(path)) as source:
        app = GswarmApp(
            made.client,
            timezone=UTC,
            open_queries=lambda: RecordingQueries(source.second_source()),
            write_files=write_files,
        )
        async with app.run_test(size=(120, 30), notifications=True) as pilot:
            for notice in ("wrote train.pdf and train.html", "the disk is full"):
                await pilot.press(*keys, "P")
                await app.workers.wait_for_complete()
                await pilot.pause()
                assert notice in screen_text(app)
                await pilot.press("f")
    assert asked == [("train", "train")] * 2


async def test_plot_right_after_the_stop_needs_the_stop_on_disk(tmp_path: Path) -> None:
    made = Scene(2, 2)
    recorder = begin(tmp_path / "run.duckdb", made)
    ends: list[object] = []

    def write_files(session: str, name: str) -> tuple[str, ...]:
        with closing(recorder.queries()) as source:
            ends.extend(source.query("SELECT ended_at FROM sessions WHERE session_id = ?", session).rows())
        return f"{name}.pdf", f"{name}.html"

    app = GswarmApp(
        made.client,
        timezone=UTC,
        open_queries=lambda: RecordingQueries(recorder.queries()),
        write_files=write_files,
    )
    try:
        async with app.run_test(size=(120, 30), notifications=True) as pilot:
            made.connect().recording().advance(5)
            await pilot.press("s", "enter")
            made.advance(20)
            made.hub.sinks[:] = [disk_later := Tap()]
            await pilot.press("x", "S", "P")
            await shows(app, pilot, "the end of session-1 isn't on disk yet; try again in a moment")
            made.hub.flush()
            recorder.submit(disk_later.events)
            await asyncio.wrap_future(recorder.commit())
            await pilot.press("P")
            await shows(app, pilot, "wrote session-1.pdf and session-1.html")
    finally:
        await asyncio.to_thread(recorder.close, made.time)
    assert ends == [(datetime.fromtimestamp(BEGINNING + 25, UTC).replace(tzinfo=None),)]


async def test_nothing_is_plotted_without_a_recording() -> None:
    made = Scene(2, 2)
    two_sessions(made)
    app = GswarmApp(made.client, timezone=UTC)
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        await pilot.press("S", "P")
        await pilot.pause()
        assert "nothing is recorded, so there is nothing to plot" in screen_text(app)
