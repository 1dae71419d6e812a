"""Files of other users: no recording goes into them, and messages name the owner."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.querying.opening import open_for_reading
from gswarm_tui.store.recording.files import is_own
from gswarm_tui.store.recording.recorder import FileWriter
from tests.integration.test_store_errors import Writer, without_privileges
from tests.unit.store_recording import INFO, query, record

NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder that all users can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as top:
        Path(top).chmod(0o755)
        yield Path(top)


def refusal(path: Path) -> str:
    """Return the error with which a recorder refuses this file."""
    with pytest.raises(StoreError) as caught:
        FileWriter(path, INFO, lambda _status: None).open()
    return str(caught.value)


@pytest.mark.root("give files away")
@pytest.mark.parametrize("suffix", ["", ".wal"])
def test_nothing_is_recorded_into_the_file_of_another_user(folder: Path, suffix: str) -> None:
    path = folder / "run.duckdb"
    record(path, [])
    theirs = folder / f"run.duckdb{suffix}"
    theirs.touch()
    os.chown(theirs, NOBODY, NOBODY)
    assert refusal(path) == f"{theirs} belongs to nobody; name another file with --db"
    assert query(path, "SELECT count(*) FROM recordings") == [(1,)]


@pytest.mark.root("give files away")
def test_nothing_is_recorded_through_a_dangling_link(folder: Path) -> None:
    path, target = folder / "run.duckdb", folder / "target"
    path.symlink_to(target)
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    assert refusal(path) == (
        f"{path} is a symbolic link of nobody to {target}; remove the link, or name another file with --db"
    )
    assert not target.exists()


LOGS = [".wal", ".wal.checkpoint", ".wal.recovery"]


@pytest.mark.root("give files away")
@pytest.mark.parametrize("suffix", ["", *LOGS])
def test_nothing_is_recorded_through_a_link_of_another_user(folder: Path, suffix: str) -> None:
    path, mine = folder / "run.duckdb", folder / "mine.duckdb"
    record(mine, [])
    theirs = folder / f"run.duckdb{suffix}"
    theirs.symlink_to(mine)
    os.chown(theirs, NOBODY, NOBODY, follow_symlinks=False)
    assert refusal(path) == (
        f"{theirs} is a symbolic link of nobody to {mine}; remove the link, or name another file with --db"
    )
    assert query(mine, "SELECT count(*) FROM recordings") == [(1,)]
    assert not is_own(path), "a name that gswarm-tui chooses itself is another one then"


@pytest.mark.root("give files away")
@pytest.mark.parametrize("suffix", ["", *LOGS])
def test_pipe_of_another_user_does_not_block_a_new_recording(folder: Path, suffix: str) -> None:
    theirs = folder / f"run.duckdb{suffix}"
    os.mkfifo(theirs)
    os.chown(theirs, NOBODY, NOBODY)
    assert refusal(folder / "run.duckdb") == f"{theirs} belongs to nobody; name another file with --db"


@pytest.mark.root("be somebody else")
@pytest.mark.parametrize("suffix", ["", ".wal"])
def test_file_that_only_its_owner_can_read_is_reported(folder: Path, suffix: str) -> None:
    path = folder / "run.duckdb"
    record(path, [])
    path.chmod(0o644)
    theirs = folder / f"run.duckdb{suffix}"
    theirs.touch()
    theirs.chmod(0o600)
    with without_privileges(), pytest.raises(StoreError) as caught:
        open_for_reading(path)
    assert str(caught.value) == (
        f"{path} can't be opened because you have no permission; "
        "ask its owner for a copy, or name another file with --db"
    )


def test_removing_the_folder_reports_every_loss(tmp_path: Path) -> None:
    folder = tmp_path / "before"
    folder.mkdir()
    then = """
input()
recorder.submit([arrived(3, [gpu_row(util_pct=3)])])
while not status[-1].error:
    time.sleep(0.01)
print(status[-1].error, flush=True)
recorder.submit([arrived(4, [gpu_row(util_pct=4)])])
print(recorder.close(T0 + 99).error, flush=True)
"""
    path = folder / "run.duckdb"
    with Writer(path, then) as writer:
        assert writer.line() == "committed"
        shutil.rmtree(folder)
        writer.say()
        sentence = f"{path} was deleted or moved, and nothing more is saved; "
        assert writer.line().startswith(sentence)
        assert writer.line().endswith("2 events could not be saved")
