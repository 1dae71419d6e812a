"""Lines that are printed when a run ends, and the names in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gswarm_tui.common.errors import UserError
from gswarm_tui.common.paths import working_folder
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.link.hub import Hub
from gswarm_tui.options.arguments import parse
from gswarm_tui.run.build import start_recording, user_name
from gswarm_tui.run.plan import Plan


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
