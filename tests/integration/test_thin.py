"""``gswarm-tui thin``: the same figures without samples, and commands that need samples say so."""

from __future__ import annotations

import errno
import io
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from contextlib import closing, nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import duckdb
import pytest

from gswarm_tui.analysis.comparison import load_run
from gswarm_tui.analysis.periods import load_periods
from gswarm_tui.analysis.summary_data import summarize
from gswarm_tui.cli import main
from gswarm_tui.fleet.events import Event, FindingChanged, SessionStarted, SessionStopped
from gswarm_tui.runs.reading import read_lines
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.recording import minutes, thinning
from tests.integration.test_minutes import made
from tests.integration.test_record import record as recording
from tests.unit.store_recording import INFO, T0, arrived, finding, gpu_row, introduced, query, record

OLD = "2100-01-01"
"""A date after all recordings of the tests."""


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Record an hour of three nodes with sessions that cut minutes; some of them have no sums yet."""
    path = tmp_path / "runs" / "run.duckdb"
    path.parent.mkdir()
    events: list[Event] = [
        event for event in made(7, 2500) if not isinstance(event, SessionStarted | SessionStopped)
    ]
    events.append(FindingChanged(T0 + 80, finding(until=T0 + 80)))
    for number, (began, ended) in enumerate([(3.3, 450.7), (95.0, 96.5), (130.2, 1800.0)]):
        events.append(SessionStarted(str(number), T0 + began, f"s{number}", T0 + began))
        events.append(SessionStopped(str(number), T0 + ended, T0 + ended))
    record(path, sorted(events, key=lambda event: getattr(event, "ts", T0)), INFO, ended_at=T0 + 4000)
    with duckdb.connect(path) as file:
        file.execute("DELETE FROM gpu_minutes WHERE epoch(minute)::BIGINT % 120 = 0")
    os.utime(path, (T0, T0))
    path.chmod(0o640)
    return path


def figures(path: Path) -> list[Any]:
    """Return what summary, compare and runs have of a file."""
    found: list[Any] = []
    with closing(FileSource(path, for_people=False)) as source:
        for period in load_periods(source):
            as_before = replace(period, thinned_at=None)
            found += [summarize(source, as_before), load_run(source, as_before, period.name)]
        found += [replace(line, size=0, sm_clock_mhz=None, thinned=False) for line in read_lines(source)]
    with redirect_stdout(io.StringIO()) as printed:
        assert main(["compare", f"{path}:s0", f"{path}:s1"]) == main(["runs", str(path)]) == 0
    return [*found, printed.getvalue()]


def test_figures_are_the_same_without_samples(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, stat = figures(path), path.stat()
    assert main(["thin", str(path.parent), "--older", OLD, "--yes"]) == 0
    assert "freed" in capsys.readouterr().out
    assert figures(path) == before
    after = path.stat()
    assert (after.st_mtime_ns, after.st_mode) == (stat.st_mtime_ns, stat.st_mode)
    assert after.st_size < stat.st_size
    assert sorted(path.parent.iterdir()) == [path]
    for command in ("plot", "report", "diagnose", "replay"):
        assert main([command, f"{path}:s0" if command != "replay" else str(path)]) == 2
        assert "was thinned on 20" in capsys.readouterr().err
    assert main(["thin", str(path.parent), "--older", OLD, "--yes"]) == 0
    assert "no recording" in capsys.readouterr().err


def test_summary_prints_stored_findings_instead_of_rules_on_what_is_left(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def summary(session: str) -> tuple[str, str]:
        assert main(["summary", f"{path}:{session}"]) == 0
        figures, label, note = capsys.readouterr().out.partition(label_of_note)
        assert label
        return figures, note

    label_of_note = "\nGPU time "
    before = [summary(session)[0] for session in ("s0", "s1")]
    assert main(["thin", str(path.parent), "--older", OLD, "--yes"]) == 0
    capsys.readouterr()
    label_of_note = "\nthinned "
    (figures, note), (others, nothing) = summary("s0"), summary("s1")
    assert [figures, others] == before
    assert "on 20" in note
    assert "findings are those stored while it was recorded" in note
    assert "n1:1 · rank 5 · clock 1,215 MHz" in note
    assert "GPU time" not in note
    assert "'FROM findings'" in " ".join(note.split())
    assert "none were stored" in nothing


def test_an_import_has_the_figures_of_the_thinned_recording(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def summaries(of: Path) -> list[Any]:
        with closing(FileSource(of, for_people=False)) as source:
            found = [summarize(source, period) for period in load_periods(source)]
        return [(one.period.name, one.whole, one.gpus, one.covered) for one in found]

    monkeypatch.chdir(path.parent.parent)
    before = summaries(path)
    assert main(["thin", str(path), "--older", OLD, "--yes"]) == 0
    assert main(["export", "--append", "all.parquet", str(path)]) == 0
    assert f"{path} was thinned on 20" in capsys.readouterr().err
    assert main(["import", "all.parquet", "--db", "back.duckdb"]) == 0
    assert summaries(Path("back.duckdb")) == before
    assert main(["sql", "--db", "back.duckdb", "--db", str(path), "SELECT 1"]) == 0
    assert "at least one of 2 recordings was thinned on 20" in capsys.readouterr().err


def test_it_asks_and_leaves_others_alone(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = path.read_bytes()
    assert main(["thin", str(path.parent), "--older", OLD]) == 2
    assert "Repeat the command with --yes" in capsys.readouterr().err
    assert main(["thin", str(path.parent), "--older", "2001-01-01", "--yes"]) == 0
    assert path.read_bytes() == before
    with duckdb.connect(path) as file:
        file.execute("UPDATE recordings SET ended_at = NULL")
    (path.parent / "other.duckdb").write_bytes(b"no database")
    (path.parent / "link.duckdb").symlink_to(path)
    shutil.copy(path, path.with_name("protected.duckdb"))
    path.with_name("protected.duckdb").chmod(0o440)
    record(
        path.with_name("short.duckdb"), [introduced(), arrived(1, [gpu_row(), None])], INFO, ended_at=T0 + 2
    )
    assert main(["thin", str(path.parent), "--older", OLD, "--yes"]) == 0
    err = capsys.readouterr().err
    assert "has a recording without an end" in err
    assert "other.duckdb" in err
    assert "link.duckdb has several names or is a link" in err
    assert "protected.duckdb is read-only; chmod u+w lets it be thinned" in err
    assert "short.duckdb would hardly get smaller" in err


def test_a_recording_that_runs_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with recording(tmp_path, "--demo", "1x1") as running:
        running.wait_for("1 node sends data")
        assert main(["thin", str(tmp_path), "--older", OLD, "--yes"]) == 0
        assert "run.duckdb is still recorded" in capsys.readouterr().err
        running.process.send_signal(signal.SIGTERM)
        running.end()
    ((count, thinned),) = query(
        tmp_path / "run.duckdb", "SELECT (SELECT count(*) FROM gpu_samples), thinned_at FROM recordings"
    )
    assert count
    assert thinned is None


def interrupt(*_args: object) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def fill(*_args: object) -> None:
    raise duckdb.IOException("No space left on device")


def refuse(*_args: object, **_options: object) -> None:
    raise PermissionError(errno.EACCES, "Permission denied")


def other(path: Path, *_args: object) -> None:
    """Thin the file as another command does at this moment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thinning, "add_all_sums", minutes.add_all_sums)
        thinning.thin(path, T0)


def no_room(_path: Path) -> SimpleNamespace:
    return SimpleNamespace(free=1000)


@pytest.mark.parametrize(
    ("module", "name", "happens", "status", "sentence"),
    [
        pytest.param(thinning, "add_all_sums", fill, 1, "because its disk is full", id="full disk"),
        pytest.param(shutil, "disk_usage", no_room, 1, "has no room for the copy; free 4.", id="no room"),
        pytest.param(tempfile, "mkdtemp", refuse, 1, "can't be thinned: Permission denied", id="folder"),
        pytest.param(thinning, "add_all_sums", interrupt, 143, "", id="closed terminal"),
    ],
)
def test_a_failed_copy_leaves_the_file_as_it_was(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    module: ModuleType,
    name: str,
    happens: Callable[..., object],
    status: int,
    sentence: str,
) -> None:
    monkeypatch.setattr(module, name, happens)
    before = path.read_bytes()
    with nullcontext() if status == 1 else pytest.raises(SystemExit, match=f"{status}"):
        assert main(["thin", str(path.parent), "--older", OLD, "--yes"]) == status
    assert path.read_bytes() == before
    assert sorted(path.parent.iterdir()) == [path]
    assert sentence in capsys.readouterr().err


def test_two_commands_at_once_thin_a_file_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = figures(path)
    monkeypatch.setattr(thinning, "add_all_sums", lambda *_args: other(path))
    assert main(["thin", str(path.parent), "--older", OLD, "--yes"]) == 1
    assert "was replaced while it was read" in capsys.readouterr().err
    assert figures(path) == before
    assert sorted(path.parent.iterdir()) == [path]
