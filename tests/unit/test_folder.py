"""Private folders of agents: their place, owner, lock and removal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gswarm_agent.folder import Folder, FolderError, is_plain, tops


def test_the_path_does_not_depend_on_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    before = tops()
    for name in ("TMPDIR", "XDG_RUNTIME_DIR", "HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "/elsewhere")
    assert tops() == before
    assert all(str(os.geteuid()) in top for top in before)


def test_an_unusable_parent_folder_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "open").mkdir(mode=0o755)
    places = [str(tmp_path / name) for name in ("file", "open", "gone/deep", "good")]
    folder = Folder.find(places, "rec@n1")
    assert folder.path == str(tmp_path / "good/rec@n1")
    folder.close()
    with pytest.raises(FolderError) as caught:
        Folder.find(places[:2], "rec@n1")
    assert str(caught.value) == (
        f"no private folder can be opened: {tmp_path}/file: it isn't a folder; "
        f"{tmp_path}/open: others may enter it"
    )


def test_an_existing_folder_is_preferred_to_a_better_parent(tmp_path: Path) -> None:
    Folder(str(tmp_path / "second"), "rec@n1", create=True).close()
    folder = Folder.find([str(tmp_path / "first"), str(tmp_path / "second")], "rec@n1")
    assert folder.top == str(tmp_path / "second")
    folder.close()


def test_the_lock_is_exclusive_and_notices_a_removed_folder(tmp_path: Path) -> None:
    first, second = (Folder(str(tmp_path / "top"), "rec@n1", create=True) for _ in range(2))
    lock = first.lock()
    assert lock is not None
    assert second.lock() is None
    first.remove()
    os.close(lock)
    with pytest.raises(FileNotFoundError):
        second.lock()
    for folder in (first, second):
        folder.close()
    assert list((tmp_path / "top").iterdir()) == []


@pytest.mark.parametrize("name", ["abc", "gpu01", "_a", "gpu-01.cluster_a", "fe80::1", "10.0.0.1"])
def test_usual_recording_names_are_accepted(name: str) -> None:
    assert is_plain(name)


@pytest.mark.parametrize("name", ["", ".", "..", "-a", ".a", "a/b", "a b", "a\n", "a@b", "é", "a\0"])
def test_names_that_could_leave_the_folder_are_refused(name: str) -> None:
    assert not is_plain(name)
