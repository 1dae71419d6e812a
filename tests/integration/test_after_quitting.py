"""Lines printed after quitting, and plots and reports written from inside the app."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from gswarm_tui import cli
from gswarm_tui.run.headless import next_commands
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


def test_next_command_can_be_pasted_into_a_shell(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = next_commands(path)
    assert line == "next: gswarm-tui summary --db='a run.duckdb'   (or replay, report)"
    command = line.removeprefix("next: ").partition("   ")[0]
    assert cli.main(shlex.split(command)[1:]) == 0
    assert "a run.duckdb" in capsys.readouterr().out
