"""Pipes and devices in place of files are never opened, and a truncated write-ahead log is reported."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gswarm_tui.cli import main
from tests.integration.exchange_recording import run
from tests.integration.test_store_errors import Writer

make_each = pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"]
)
Make = Callable[[Path], object]


@make_each
@pytest.mark.parametrize("name", ["run.json", "run.duckdb", "run.csv", "run"])
def test_import_never_opens_a_pipe_or_device(
    tmp_path: Path, name: str, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    make(path)
    assert main(["import", str(path), "--db", str(tmp_path / "new.duckdb")]) == 2
    assert "is a pipe or a device" in capsys.readouterr().err
    assert not (tmp_path / "new.duckdb").exists()


@make_each
@pytest.mark.parametrize("words", [["--config"], ["--ssh-config"], ["recover", "--db"]])
def test_pipe_or_device_named_by_an_option_is_refused(
    words: list[str],
    tmp_path: Path,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path("named"))
    assert main([*words, "named"]) == 2
    assert f'{words[-1]}: "named" is a pipe or a device, not a file' in capsys.readouterr().err


@make_each
def test_pipe_or_device_as_write_ahead_log_is_refused(
    tmp_path: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run(tmp_path / "run.duckdb")
    make(path.with_name("run.duckdb.wal"))
    assert main(["sessions", "--db", str(path)]) == 1
    assert "run.duckdb.wal is a pipe or a device" in capsys.readouterr().err


def test_recording_with_a_truncated_log_warns_that_rows_may_be_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.duckdb"
    with Writer(path, "input()") as writer:  # killed at the end of the block
        assert writer.line() == "committed"
    log = path.with_name("run.duckdb.wal")
    whole = log.stat().st_size
    for size in (whole, whole - 100):
        with log.open("r+b") as file:
            file.truncate(size)
        assert main(["sessions", "--db", str(path)]) == 0
        assert "if that was cut short, the last rows are missing" in capsys.readouterr().err


def test_copy_without_its_log_says_what_to_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, copy = tmp_path / "run.duckdb", tmp_path / "copy.duckdb"
    with Writer(path, "input()") as writer:  # killed at the end of the block
        assert writer.line() == "committed"
    copy.write_bytes(path.read_bytes())
    assert main(["sessions", "--db", str(copy)]) == 2
    assert (
        "has no tables; if it is a copy of a recording, copy copy.duckdb.wal, too" in capsys.readouterr().err
    )
