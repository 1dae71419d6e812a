"""What is said at the end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gswarm_tui.cli import _folder, _say_goodbye, _user_name
from gswarm_tui.errors import UserError
from gswarm_tui.fleet.events import RecorderStatus, SessionStarted
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.hub import Hub
from gswarm_tui.lifetime import Ended

LOG = Path("/state/gswarm-tui.log")


def said(
    capsys: pytest.CaptureFixture[str], ended: Ended, return_code: int = 0
) -> tuple[int, list[str], list[str]]:
    """The exit status, and the lines on standard output and standard error."""
    hub = Hub(Fleet(["gpu01"]))
    hub.publish(SessionStarted("id-1", 1.0, "train", 1.0))
    status = _say_goodbye(hub, ended, return_code, LOG)
    captured = capsys.readouterr()
    return status, captured.out.splitlines(), captured.err.splitlines()


def recorded(error: str = "") -> RecorderStatus:
    return RecorderStatus("/data/run.duckdb", 12_345, 6_700_000, 0, {}, error, closed=True)


def test_where_the_recording_is(capsys: pytest.CaptureFixture[str]) -> None:
    line = "/data/run.duckdb: 12,345 rows in 6.7 MB, 1 session"
    assert said(capsys, Ended("", recorded())) == (0, [line], [])
    assert said(capsys, Ended("", None)) == (0, [], [])


def test_what_went_wrong_is_a_sentence_and_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = said(capsys, Ended("", recorded("/data/run.duckdb is gone")))
    assert (status, len(out)) == (1, 1)
    assert err == [f"gswarm-tui: the recording isn't complete: /data/run.duckdb is gone (log: {LOG})"]
    assert said(capsys, Ended("the hub failed", None)) == (
        1,
        [],
        [f"gswarm-tui: the hub failed (log: {LOG})"],
    )
    status, _, [line] = said(capsys, Ended("", None), return_code=1)
    assert status == 1
    assert line.startswith("gswarm-tui: the screen failed; ")


def test_a_deleted_folder_and_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    with pytest.raises(UserError, match=r"^the current folder was deleted; go to another first\.$"):
        _folder()

    def nobody() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert _user_name() == str(os.getuid())
