"""Commands replace an existing file only with ``--force``, and refuse it before their work begins."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gswarm_tui import cli
from tests.integration.exchange_recording import session
from tests.unit.store_recording import arrived, gpu_row, introduced, record

COMMANDS = [
    (["sql", "SELECT error('the query ran')", "-o", "x.parquet"], "x.parquet"),
    (["sessions", "-o", "x.json"], "x.json"),
    (["summary", "empty", "-o", "x.md"], "x.md"),
    (["compare", "empty", "warm", "-o", "x.csv"], "x.csv"),
    (["plot", "empty", "-o", "other.png", "-o", "x.pdf"], "x.pdf"),
    (["report", "empty"], "empty.html"),
    (["export", "train", "-o", "x.json"], "x.json"),
    (["export", "train", "--format", "csv"], "train.csv"),
]
"""Commands whose work fails (a session without samples, an invalid query), where that is possible."""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of the sessions "train", "warm", and "empty", which has no samples."""
    path = tmp_path_factory.mktemp("recording") / "run.duckdb"
    frames = [arrived(seq, [gpu_row(util_pct=seq), gpu_row(util_pct=5)]) for seq in range(1, 10)]
    sessions = [*session("train", 0, 20), *session("warm", 1, 5), *session("empty", 50, 60)]
    record(path, [introduced(), *frames, *sessions])
    return path


@pytest.fixture
def folder(recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a copy of the recording."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(recording, tmp_path)
    return tmp_path


@pytest.mark.parametrize(("words", "name"), COMMANDS)
def test_existing_file_is_refused_before_the_work_begins(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], name: str
) -> None:
    (folder / name).write_text("thesis")
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"{name} exists; name another file with -o, or replace it with --force." in captured.err
    assert captured.err.count("\n") == 1
    assert (folder / name).read_text() == "thesis"
    assert sorted(path.name for path in folder.iterdir()) == sorted(["run.duckdb", name])


@pytest.mark.parametrize(("words", "name"), COMMANDS)
def test_force_replaces_a_file_but_not_the_recording(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], name: str
) -> None:
    works = ["SELECT 1" if "error" in word else word.replace("empty", "train") for word in words]
    target = folder / name.replace("empty", "train")
    target.symlink_to("run.duckdb")
    assert cli.main([*works, "--db", "run.duckdb", "--force"]) == 2
    assert f"{target.name} is the recording itself; name another file with -o." in capsys.readouterr().err
    target.unlink()
    target.write_text("thesis")
    assert cli.main([*works, "--db", "run.duckdb", "--force"]) == 0
    assert target.read_bytes() not in (b"", b"thesis")


def test_folder_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "x.csv").mkdir()
    assert cli.main(["compare", "empty", "warm", "-o", "x.csv", "--force"]) == 2
    assert "x.csv is a folder; name a file in it with -o." in capsys.readouterr().err
