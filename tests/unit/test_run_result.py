"""Lines that are printed when a run ends, and the names in them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gswarm_tui.common.errors import UserError
from gswarm_tui.common.paths import working_folder
from gswarm_tui.fleet.events import RecorderStatus, SessionStarted
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.link.hub import Hub
from gswarm_tui.options.arguments import parse
from gswarm_tui.run.build import start_recording, user_name
from gswarm_tui.run.lifetime import RunResult
from gswarm_tui.run.plan import Plan
from gswarm_tui.run.watch import _print_result

LOG = Path("/state/gswarm-tui.log")


def said(
    capsys: pytest.CaptureFixture[str], ended: RunResult, return_code: int = 0
) -> tuple[int, list[str], list[str]]:
    """Return the exit status, and the lines on standard output and standard error."""
    hub = Hub(Fleet(["gpu01"]))
    hub.publish(SessionStarted("id-1", 1.0, "train", 1.0))
    status = _print_result(hub, ended, return_code, LOG, "ab12cd34-0000")
    captured = capsys.readouterr()
    return status, captured.out.splitlines(), captured.err.splitlines()


def recorded(error: str = "") -> RecorderStatus:
    return RecorderStatus("/data/run.duckdb", 12_345, 6_700_000, 0, {}, error, closed=True)


def test_result_names_the_recording_with_rows_size_and_sessions(capsys: pytest.CaptureFixture[str]) -> None:
    line = "/data/run.duckdb: 12,345 rows in 6.7 MB, 1 session"
    assert said(capsys, RunResult("", recorded())) == (0, [line], [])
    assert said(capsys, RunResult("", None)) == (0, [], [])


def test_unfinished_sorting_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = said(capsys, RunResult("", replace(recorded(), closed=False)))
    assert (status, err) == (
        0,
        ["gswarm-tui: everything is saved; the file is still being sorted, ctrl+c stops that"],
    )


def test_failures_are_sentences_with_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = said(capsys, RunResult("", recorded("/data/run.duckdb is gone")))
    assert (status, len(out)) == (1, 1)
    assert err == [f"gswarm-tui: the recording is incomplete: /data/run.duckdb is gone (log: {LOG})"]
    assert said(capsys, RunResult("the hub failed", None)) == (
        1,
        [],
        [f"gswarm-tui: the hub failed (log: {LOG})"],
    )
    status, _, [line] = said(capsys, RunResult("", None), return_code=1)
    assert status == 1
    assert line.startswith("gswarm-tui: the screen failed; ")


def test_unfetched_nodes_are_named_with_the_recover_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, _, [line] = said(capsys, RunResult("", recorded(), ("gpu01", "gpu02")))
    assert status == 1
    assert line == (
        "gswarm-tui: gpu[01-02] may hold frames that couldn't be fetched; "
        "`gswarm-tui recover ab12cd34 --finish --db /data/run.duckdb` tries again"
    )


def test_deleted_folder_is_reported_and_user_without_a_name_is_a_number(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    with pytest.raises(UserError, match=r"^the current folder was deleted; change to another one\.$"):
        working_folder()

    def nobody() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert user_name() == str(os.getuid())


async def test_two_runs_of_one_minute_get_a_file_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options, plan = parse(["--demo", "1x1"], {}), Plan(("sim01",))
    paths = []
    for run in ("first", "second"):
        recorder = start_recording(Hub(Fleet(plan.nodes)), options, plan, [], run)
        paths.append(Path(recorder.status().path).absolute())
        recorder.close(None)
    assert len(set(paths)) == 2
    assert sorted(paths) == sorted(tmp_path.glob("*.duckdb"))
