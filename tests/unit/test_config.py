"""Config file: its settings and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from gswarm_tui.options.config import ConfigError, load

KEYS = ("interval", "metrics", "db", "user", "ssh_config", "theme")


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "config.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_settings_are_loaded_and_a_missing_file_has_none(tmp_path: Path) -> None:
    assert load(tmp_path / "none.toml", KEYS) == {}
    assert load(write(tmp_path, 'interval = 0.5\nssh_config = "~/x"\n'), KEYS) == {
        "interval": "0.5",
        "ssh_config": "~/x",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('user = "me"\n\nintervall = 1\n', 'unknown setting "intervall"; perhaps you meant interval.'),
        ('ssh-config = "x"\n', 'unknown setting "ssh-config"; perhaps you meant ssh_config.'),
        ("# [them]\n[them]\na = 1\n", 'unknown setting "them"; perhaps you meant theme.'),
        ("qqq = 1\n", 'unknown setting "qqq"; use one of interval, metrics, db,'),
    ],
)
def test_unknown_setting_suggests_the_nearest(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(path, KEYS)
    assert str(caught.value).startswith(f"{path}: {said}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = 1\ninterval = = 2\n", "isn't valid TOML: Invalid value (at line 2, column 12)."),
        (
            b'theme = "\xff"\n',
            "isn't valid TOML: 'utf-8' codec can't decode byte 0xff in position 9: invalid start byte.",
        ),
    ],
)
def test_invalid_toml_names_line_and_column(tmp_path: Path, text: str | bytes, said: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(path, KEYS)
    assert str(caught.value) == f"the config file {path} {said}"


def test_unreadable_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^can't read the config file .*: Is a directory.$"):
        load(tmp_path, KEYS)
