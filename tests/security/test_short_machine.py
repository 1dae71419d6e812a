"""Closed standard files, no home folder, full disks: the program works, or ends with one sentence."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.terminal import InTerminal
from tests.unit.store_recording import introduced, record

PROGRAM = f"{shlex.quote(sys.executable)} -m gswarm_tui --demo 1x1"
CLOSED = "a standard file is closed; use /dev/null in its place."


def in_shell(line: str) -> InTerminal:
    return InTerminal(["bash", "-c", line], size=(120, 40))


@pytest.mark.parametrize(
    ("line", "status", "sentence"),
    [
        (f"{PROGRAM} <&-", 2, CLOSED),
        (f"{PROGRAM} >&-", 2, CLOSED),
        (f"TERM=dumb {PROGRAM}", 2, "but TERM is dumb"),
        (f"HOME=/dev/null XDG_STATE_HOME= {PROGRAM.partition(' --')[0]} recover", 0, "nothing to recover"),
    ],
)
def test_what_is_missing_is_reported_in_a_sentence(
    tmp_path: Path, line: str, status: int, sentence: str
) -> None:
    with in_shell(f"cd {tmp_path}; {line}") as running:
        assert running.exit_status() == status
        assert sentence in running.screen().replace("\n", " ")
        assert "Traceback" not in running.screen()


def test_home_that_is_not_a_folder_does_not_stop_the_program(tmp_path: Path) -> None:
    with in_shell(f"HOME=/dev/null XDG_STATE_HOME= exec {PROGRAM} --db {tmp_path}/run.duckdb") as running:
        running.wait_for(" rows")
        running.press("q")
        assert running.exit_status() == 0


def test_query_without_a_writable_temporary_folder_works(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    record(path, [introduced()])
    program = f"{shlex.quote(sys.executable)} -m gswarm_tui"
    line = f"ulimit -f 0; exec {program} sql 'SELECT 41 + 1 AS sum' --db {path} --format csv"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["sum", "42"], "")


def test_full_disk_under_a_result_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    record(path, [introduced()])
    program = f"{shlex.quote(sys.executable)} -m gswarm_tui"
    query = "sql 'SELECT i, random() FROM range(300000) t(i)' --format parquet -o out.parquet"
    line = f"ulimit -f 100; exec {program} {query} --db {path}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        "gswarm-tui: the result can't grow because of a limit on file sizes (ulimit -f).\n"
    )
    assert [each.name for each in tmp_path.iterdir()] == ["run.duckdb"]
