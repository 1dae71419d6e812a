"""A user or job that has as many processes and threads as allowed, as happens on login nodes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gswarm_tui.common.errors import NO_PROCESS
from tests.integration.heads import eventually, nothing_left
from tests.preloaded import compiled
from tests.unit.store_recording import query

GSWARM = [sys.executable, "-m", "gswarm_tui"]
DB = ["--db", "run.duckdb"]
RECORD = [*GSWARM, "record", "--demo", "1x2", "--interval", "0.2", *DB, "--no-arm"]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library with which programs can start nothing while their folder has a file FULL."""
    return str(compiled("full_machine.c", tmp_path_factory.mktemp("full")))


@pytest.fixture
def environ(library: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables of such programs."""
    monkeypatch.delenv("DUCKDB_JE_MALLOC_CONF", raising=False)  # set by tests that record in this process
    return {**os.environ, "LD_PRELOAD": library}


@contextmanager
def recording(folder: Path, environ: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Record a command that ends with status 7 at the end of its input."""
    with nothing_left(folder / "run.duckdb"):
        command = [*RECORD, "--", sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit(7)"]
        with subprocess.Popen(
            command, cwd=folder, env=environ, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running:
            eventually(lambda: "1 live" in gswarm(folder, "status", *DB).stdout, "the node sends frames")
            yield running


def gswarm(folder: Path, *words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*GSWARM, *words], cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "words",
    [
        ("once", "--demo", "1x2"),
        ("sql", *DB, "FROM gpus"),
        ("record", "--demo", "1x2", "--", "true"),
    ],
)
def test_commands_say_that_nothing_can_be_started(
    tmp_path: Path, environ: dict[str, str], words: tuple[str, ...]
) -> None:
    with nothing_left(tmp_path / "run.duckdb"):
        subprocess.run([*RECORD, "--", "true"], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "FULL").touch()
    done = gswarm(tmp_path, *words, env=environ)
    assert done.returncode == 1
    assert re.fullmatch(
        rf"gswarm-tui: (the recorder can't be started: )?{re.escape(NO_PROCESS)}\.?\n", done.stderr
    )


def test_a_recording_is_completed_although_nothing_can_be_started(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    with recording(tmp_path, environ) as running:
        (tmp_path / "FULL").touch()
        refused = gswarm(tmp_path, "sql", *DB, "SELECT 1")
        assert gswarm(tmp_path, "mark", *DB, "full").returncode == 0
        _, errors = running.communicate()
    assert refused.stderr == f"gswarm-tui: {NO_PROCESS}.\n"
    assert running.returncode == 7
    assert f"gswarm-tui: gswarm-tui summary can't be run: {NO_PROCESS}\n" in errors
    assert "rror" not in errors
    ended = "SELECT count(*), count(ended_at) FROM recordings"
    assert query(tmp_path / "run.duckdb", ended) == [(1, 1)]
    assert query(tmp_path / "run.duckdb", "SELECT mark FROM marks") == [("full",)]


def test_a_command_continues_although_its_killed_recorder_cannot_be_restarted(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    with recording(tmp_path, environ) as running:
        (tmp_path / "FULL").touch()
        (recorder,) = re.findall(r"process (\d+)", gswarm(tmp_path, "status", *DB).stdout)
        os.kill(int(recorder), signal.SIGKILL)
        assert running.stderr is not None
        lines = iter(running.stderr.readline, "")
        assert any(line == f"gswarm-tui: the recorder can't be started: {NO_PROCESS}\n" for line in lines)
        running.communicate()
    assert running.returncode == 7


def test_a_node_that_cannot_be_reached_for_lack_of_processes_has_a_remedy(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    with recording(tmp_path, environ) as running:
        (tmp_path / "FULL").touch()
        (recorder,) = re.findall(r"process (\d+)", gswarm(tmp_path, "status", *DB).stdout)
        (agent,) = Path(f"/proc/{recorder}/task/{recorder}/children").read_text().split()
        os.kill(int(agent), signal.SIGKILL)
        eventually(lambda: "ulimit -u" in gswarm(tmp_path, "nodes", *DB, "--json").stdout, "the remedy")
        (tmp_path / "FULL").unlink()
        eventually(lambda: "1 live" in gswarm(tmp_path, "status", *DB).stdout, "the node is back")
        running.communicate()
