"""Private folders of agents: their place, owner, lock and removal."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gswarm_agent.folder import Folder, FolderError, folders, is_plain, remove_forgotten, tops


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


def test_folders_unused_for_a_week_are_removed(tmp_path: Path) -> None:
    top = tmp_path / "top"
    long_ago = time.time() - 8 * 86_400
    locks = []
    for name in ("forgotten", "recent", "served"):
        folder = Folder(str(top), f"{name}@n1", create=True)
        locks.append(folder.lock())
        (top / f"{name}@n1" / "x.frames").write_bytes(b"x")
        if name != "recent":
            for path in (*(top / f"{name}@n1").iterdir(), top / f"{name}@n1"):
                os.utime(path, (long_ago, long_ago))
        if name != "served":
            lock = locks.pop()
            assert lock is not None
            os.close(lock)
        folder.close()
    (top / "agent-0123").mkdir(mode=0o700)
    os.utime(top / "agent-0123", (long_ago, long_ago))
    remove_forgotten([str(top), str(tmp_path / "none")])
    assert sorted(path.name for path in top.iterdir()) == ["agent-0123", "recent@n1", "served@n1"]
    assert [folder.name for folder in folders([str(top)])] == ["agent-0123", "recent@n1", "served@n1"]
    for lock in locks:
        assert lock is not None
        os.close(lock)


@pytest.mark.parametrize("name", ["abc", "gpu01", "_a", "gpu-01.cluster_a", "fe80::1", "10.0.0.1"])
def test_usual_recording_names_are_accepted(name: str) -> None:
    assert is_plain(name)


@pytest.mark.parametrize("name", ["", ".", "..", "-a", ".a", "a/b", "a b", "a\n", "a@b", "é", "a\0"])
def test_names_that_could_leave_the_folder_are_refused(name: str) -> None:
    assert not is_plain(name)
