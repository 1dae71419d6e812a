"""The rewrite of a recording at its end: every row stays in the file exactly once, even after a kill."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import numpy as np
import pytest

from gswarm_tui.store.querying.cursor_pool import CursorPool
from gswarm_tui.store.querying.results import QueryError
from gswarm_tui.store.recording.database import Database, RecordingInfo, rewrite_path
from gswarm_tui.store.recording.files import file_bytes, wal_path
from gswarm_tui.store.sql.schema import GPU_SAMPLES, HOST_SAMPLES

T0 = 1_800_000_000
INFO = RecordingInfo(T0, "login1", "ada", "gswarm-tui", 1000, "0.1.0")
ALL = "SELECT count(*), bit_xor(hash(ts, gpu_id, power_w, energy_mj)) FROM gpu_samples"
ONCE = "SELECT count(*), count(DISTINCT (ts, gpu_id)) FROM gpu_samples"


def add(database: Database, first: int, seconds: int, gpus: int = 32) -> None:
    """Add some seconds of samples, one second per transaction, as the recorder does."""
    second, gpu = (axis.ravel() for axis in np.mgrid[first : first + seconds, 1 : gpus + 1])
    ts = (T0 * 10**6 + second * 10**6).astype("datetime64[us]")
    columns = {
        "ts": ts,
        "gpu_id": gpu,
        "power_w": (300.0 + second % 90 + gpu),
        "energy_mj": (gpu * 10**9 + second * 300_000.0),
    }
    host = {"ts": ts[gpu == 1], "node_id": gpu[gpu == 1], "seq": second[gpu == 1] + 1}
    database.write([(GPU_SAMPLES, columns), (HOST_SAMPLES, host)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.duckdb"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    database = Database(path)
    database.begin_recording(INFO)
    yield database
    database.close()


def runs(database: Database) -> int:
    """Return how often the GPU changes from one row to the next."""
    return int(
        database.execute(
            "SELECT count(*) FILTER (gpu_id <> before) FROM "
            "(SELECT gpu_id, lag(gpu_id) OVER (ORDER BY rowid) AS before FROM gpu_samples)"
        )[0][0]
    )


def test_a_rewrite_keeps_rows_and_permissions(path: Path, database: Database) -> None:
    for first in range(0, 9_000, 1_000):
        add(database, first, 1_000)
        database.checkpoint()
    before, size = database.execute(ALL), database.bytes()
    path.chmod(0o640)
    os.setxattr(path, "user.given", b"mine")  # an access control list is one, too
    database.rewrite(60)
    database.close()
    assert path.stat().st_size < size
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.getxattr(path, "user.given") == b"mine"
    assert list(path.parent.iterdir()) == [path]
    again = Database(path)
    try:
        assert again.execute(ALL) == before
        assert runs(again) == 31
        assert len(again.execute("SELECT * FROM samples")) == 0  # views are there; these GPUs have no node
    finally:
        again.close()


def test_a_file_with_a_write_ahead_log_is_not_rewritten(path: Path) -> None:
    fragmented(path)
    database = Database(path)
    add(database, 10_000, 1)
    before, inode = database.execute(ALL), path.stat().st_ino
    database.rewrite(60)
    assert path.stat().st_ino == inode
    database.close()
    with duckdb.connect(str(path)) as file:
        assert file.execute(ALL).fetchall() == before


def test_a_recording_that_was_moved_and_linked_is_not_rewritten(path: Path) -> None:
    fragmented(path)
    database = Database(path)
    database.checkpoint()
    path.symlink_to(path.rename(path.with_name("moved.duckdb")))
    database.rewrite(60)
    database.close()
    assert path.is_symlink()


_COMPACTOR = """
import sys, threading
from tests.integration.test_store_rewrite import *
database = Database(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.readline()
database.rewrite(60)
database.close()
print("closed", flush=True)
"""


@pytest.mark.parametrize("seen", ["the file", "its log", "a megabyte", "the end"])
def test_a_kill_during_the_rewrite_leaves_the_file_whole(path: Path, seen: str) -> None:
    fragmented(path)
    with duckdb.connect(str(path)) as file:
        before = file.execute(ALL).fetchall()
    new = rewrite_path(path)
    moments: dict[str, Callable[[], bool]] = {
        "the file": new.exists,
        "its log": wal_path(new).exists,
        "a megabyte": lambda: file_bytes(new) > 1_000_000,
        "the end": lambda: False,
    }
    command = [sys.executable, "-c", _COMPACTOR, str(path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=Path(__file__).parents[2]) as process:
        try:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == b"open\n"
            process.stdin.write(b"\n")
            process.stdin.flush()
            while not moments[seen]() and not select.select([process.stdout], [], [], 0)[0]:
                pass
        finally:
            process.kill()
    Database(path).close()
    assert list(path.parent.iterdir()) == [path]
    with duckdb.connect(str(path)) as file:
        assert file.execute(ALL).fetchall() == before


def test_a_rewrite_stops_after_its_timeout(path: Path, database: Database) -> None:
    add(database, 0, 6_000, gpus=64)
    database.checkpoint()
    before, inode = database.execute(ALL), path.stat().st_ino
    database.rewrite(0)
    assert database.execute(ALL) == before
    assert path.stat().st_ino == inode
    assert list(path.parent.iterdir()) == [path]


def test_opening_a_file_removes_the_copy_of_a_killed_rewrite(path: Path) -> None:
    fragmented(path)
    left = [rewrite_path(path), wal_path(rewrite_path(path))]
    rewrite_path(path).parent.mkdir()
    for one in left:
        one.write_bytes(b"left")
    Database(path).close()
    assert [one.exists() for one in left] == [False, False]


def fragmented(path: Path) -> None:
    """Make a recording that is worth rewriting."""
    path.write_bytes(_fragmented())


@cache
def _fragmented() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder, "run.duckdb")
        database = Database(path)
        database.begin_recording(INFO)
        for first in range(0, 9_000, 1_000):
            add(database, first, 1_000)
            database.checkpoint()
        database.close()
        return path.read_bytes()


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE notes AS SELECT 42 AS answer",
        "ALTER TABLE gpu_samples ADD COLUMN answer INT; UPDATE gpu_samples SET answer = 42",
    ],
)
def test_a_file_with_foreign_tables_is_not_rewritten(path: Path, statement: str) -> None:
    fragmented(path)
    with duckdb.connect(str(path)) as file:
        file.execute(statement)
    database = Database(path)
    database.checkpoint()
    database.rewrite(60)
    database.close()
    with duckdb.connect(str(path)) as file:
        table = "notes" if "notes" in statement else "gpu_samples"
        assert file.execute(f"SELECT DISTINCT answer FROM {table}").fetchall() == [(42,)]


def test_a_rewrite_does_not_touch_a_file_that_replaced_the_recording(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fragmented(path)
    database = Database(path)
    database.checkpoint()
    before, moved = database.execute(ALL), path.with_name("moved.duckdb")

    def while_it_is_written(*_paths: Path) -> None:
        path.rename(moved)
        path.write_text("mine")

    monkeypatch.setattr(shutil, "copystat", while_it_is_written)
    database.rewrite(60)
    database.close()
    assert path.read_text() == "mine"
    assert sorted(path.parent.iterdir()) == [moved, path]
    with duckdb.connect(str(moved)) as file:
        assert file.execute(ALL).fetchall() == before


def test_a_rewrite_is_complete_while_a_query_reads_all_databases(path: Path) -> None:
    fragmented(path)
    pool = CursorPool(path)
    database = Database(path, pool)
    before = database.execute(ONCE)
    database.checkpoint()
    stop, asked = threading.Event(), threading.Event()

    def ask() -> None:
        queries = pool.source()
        with contextlib.suppress(QueryError):  # the last ends with the file
            while not stop.is_set():
                asked.set()
                looking = "SELECT count(*) FROM duckdb_tables(), range(300_000) r(i) WHERE hash(i) % 7 = 1"
                list(queries.query(looking).rows())

    asking = [threading.Thread(target=ask) for _ in range(3)]
    for one in asking:
        one.start()
    try:
        assert asked.wait(30)
        database.rewrite(60)
        copied = shutil.copy(path, path.with_name("copied.duckdb"))
        assert not rewrite_path(path).parent.exists()
    finally:
        stop.set()
        database.close()
        for one in asking:
            one.join()
    with duckdb.connect(str(copied)) as file:
        assert file.execute(ONCE).fetchall() == before
