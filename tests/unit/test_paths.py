"""XDG folders of the head."""

from __future__ import annotations

from pathlib import Path

import pytest

from gswarm_tui.common.errors import UserError
from gswarm_tui.common.paths import (
    cache_folder,
    config_file,
    matching,
    recordings_beside,
    runtime_folder,
    state_folder,
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_config_state_and_cache_are_below_the_home_folder(home: Path) -> None:
    assert config_file() == home / ".config" / "gswarm-tui" / "config.toml"
    assert state_folder() == home / ".local" / "state" / "gswarm-tui"
    assert cache_folder() == home / ".cache" / "gswarm-tui"


def test_absolute_xdg_variables_move_the_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/etc/xdg")
    monkeypatch.setenv("XDG_STATE_HOME", "/var/state")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    assert config_file() == Path("/etc/xdg/gswarm-tui/config.toml")
    assert state_folder() == Path("/var/state/gswarm-tui")
    assert cache_folder() == Path("/var/cache/gswarm-tui")


def test_user_without_home_folder_gets_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_number: int) -> object:
        raise KeyError

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", unknown)
    for path in (config_file, state_folder, cache_folder):
        with pytest.raises(UserError, match="set HOME to a folder of yours"):
            path()


def test_runtime_folder_is_used_only_where_the_login_has_one() -> None:
    assert runtime_folder({"XDG_RUNTIME_DIR": "/run/user/7"}) == Path("/run/user/7/gswarm-tui")
    assert runtime_folder({}) is None
    assert runtime_folder({"XDG_RUNTIME_DIR": "relative"}) is None


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("trian.duckdb", "; perhaps you meant train.duckdb"),
        ("xyz.duckdb", "; its folder has eval.duckdb, train.duckdb"),
    ],
)
def test_a_missing_recording_is_compared_with_those_beside_it(tmp_path: Path, name: str, hint: str) -> None:
    for each in ("train", "eval"):
        (tmp_path / f"{each}.duckdb").touch()
    assert recordings_beside(tmp_path / name) == hint


def test_a_file_matches_a_pattern_once_by_its_own_path(tmp_path: Path) -> None:
    (tmp_path / "runs/b").mkdir(parents=True)
    files = [tmp_path / "runs/b/one.duckdb", tmp_path / "runs/two.duckdb"]
    for file in files:
        file.touch()
    (tmp_path / "runs/a.duckdb").symlink_to("two.duckdb")
    # Followed, these links would be 2**40 paths.
    for name in ("up", "again"):
        (tmp_path / "runs/b" / name).symlink_to("..")
    assert matching(tmp_path / "runs/**/*.duckdb") == files
