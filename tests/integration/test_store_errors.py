"""File and disk errors: each is reported in one sentence, and no committed row is lost."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import duckdb
import pytest

from gswarm_tui.store.errors import FileInUseError, StoreError, explain
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.querying.opening import open_for_reading
from gswarm_tui.store.recording.files import wal_path
from gswarm_tui.store.recording.recorder import FileWriter
from tests.unit.store_recording import INFO, arrived, gpu_row, introduced, query, record


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.duckdb"


def refusal(path: Path) -> str:
    """Return the error with which a recorder refuses this file."""
    with pytest.raises(StoreError) as caught:
        FileWriter(path, INFO, lambda _status: None).open()
    return str(caught.value)


@contextmanager
def without_privileges() -> Iterator[None]:
    """Give this thread an ordinary user's file access, even if the tests run as root."""
    libc = ctypes.CDLL(None)
    me = os.geteuid()
    libc.setfsuid(65534)
    try:
        yield
    finally:
        libc.setfsuid(me)


class Writer:
    """A recorder in its own process that records two frames, reports that, and then runs a script."""

    code = """
import sys, time
from tests.unit.store_recording import *
from gswarm_tui.fleet.events import SessionStarted
status = []
recorder = FileWriter(Path(sys.argv[1]), INFO, status.append, commit_every_s=0, retry_every_s=0.05)
recorder.open()
recorder.submit([introduced(gpus=1), SessionStarted("s", T0, "s", T0)])
recorder.submit([arrived(i, [gpu_row(util_pct=i)]) for i in (1, 2)])
while not status or status[-1].committed != {("n1", "life1"): 2}:
    time.sleep(0.01)
print("committed", flush=True)
"""

    def __init__(self, path: Path, then: str, stderr: int | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.code + then, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def say(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")


def test_killed_recorder_leaves_all_committed_frames(path: Path) -> None:
    with Writer(path, "input()") as writer:
        assert writer.line() == "committed"
        writer.process.send_signal(signal.SIGKILL)
        writer.process.wait()
    assert query(path, "SELECT util_pct FROM gpu_samples ORDER BY ts") == [(1,), (2,)]
    assert query(path, "SELECT ended_at FROM recordings") == [(None,)]
    assert query(path, "SELECT last_seq FROM links") == [(2,)]
    assert query(path, "SELECT samples FROM session_summary WHERE scope = 'all'") == [(2,)]
    record(path, [introduced(gpus=1), arrived(1, [gpu_row(util_pct=9)])])
    assert query(path, "SELECT recording_id, util_pct FROM samples ORDER BY 2") == [(1, 1), (1, 2), (2, 9)]


# The recording is saved, and the file is tidied up for longer than its closing waits.
TIDIES = """
import atexit
import gswarm_tui.store.recording.recorder as module
module._REWRITE_TIMEOUT_S = 0.01
rewrite = module.Database.rewrite
def slow(self, timeout_s):
    self._connection.execute("SELECT sum(a.range * b.range % 7) FROM range({n}) a, range({n}) b")
    rewrite(self, timeout_s)
module.Database.rewrite = slow
print(recorder.close(T0 + 60).closed, flush=True)
atexit.register(print, "ends", flush=True)
"""


def test_exit_waits_for_the_rewrite_of_a_large_file(path: Path) -> None:
    with Writer(path, TIDIES.format(n=9_999)) as writer:
        assert [writer.line() for _ in range(3)] == ["committed", "False", "ends"]
        assert writer.process.wait() == 0
    assert not wal_path(path).exists()
    assert query(path, "SELECT ended_at IS NOT NULL FROM recordings") == [(True,)]


def test_ctrl_c_ends_the_wait_for_a_rewrite_without_traceback(path: Path) -> None:
    with Writer(path, TIDIES.format(n=99_999), stderr=subprocess.PIPE) as writer:
        assert [writer.line() for _ in range(3)] == ["committed", "False", "ends"]
        state = Path(f"/proc/{writer.process.pid}/stat")
        while state.read_text().rpartition(")")[2].split()[0] != "S":  # it doesn't wait yet
            time.sleep(0.01)
        writer.process.send_signal(signal.SIGINT)
        assert writer.process.communicate(timeout=60)[1] == ""
        assert writer.process.returncode == 130
    assert query(path, "SELECT ended_at IS NOT NULL FROM recordings") == [(True,)]


def test_a_file_in_use_names_the_process(path: Path) -> None:
    with Writer(path, "input()") as writer:
        assert writer.line() == "committed"
        with pytest.raises(FileInUseError) as caught:
            FileWriter(path, INFO, lambda _status: None).open()
        said = str(caught.value)
        assert said.startswith(f"{path} is in use by ")
        assert f"process {writer.process.pid};" in said
        with pytest.raises(StoreError, match=f"process {writer.process.pid};"):
            open_for_reading(path)


_FULL = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (recorder.status().file_bytes // 2, hard))
for i in range(3, 40):
    recorder.submit([arrived(i, [gpu_row(util_pct=i)])])
while not status[-1].error:
    time.sleep(0.01)
print(status[-1].error, flush=True)
"""


def test_recorder_reports_a_full_disk_and_continues_with_free_space(path: Path) -> None:
    then = """
recorder.submit([arrived(i, [gpu_row(util_pct=i)]) for i in range(40, 50)])
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
while status[-1].error or status[-1].waiting:
    time.sleep(0.01)
print(recorder.close(T0 + 99).error or "no error", flush=True)
"""
    with Writer(path, _FULL + then) as writer:
        assert writer.line() == "committed"
        assert writer.line() == f"{path} can't grow because of a limit on file sizes (ulimit -f)"
        assert writer.line() == "no error"
    assert query(path, "SELECT list(util_pct ORDER BY ts) FROM gpu_samples") == [(list(range(1, 50)),)]
    assert query(path, "SELECT lost_frames FROM links") == [(0,)]


def test_full_disk_keeps_committed_frames_and_reports_missing_ones(path: Path) -> None:
    with Writer(path, _FULL + "print(recorder.close(T0 + 99).error, flush=True)") as writer:
        assert writer.line() == "committed"
        assert "can't grow" in writer.line()
        assert re.search(r"; [\d,]+ events could not be saved$", writer.line())
    ((values,),) = query(path, "SELECT list(util_pct ORDER BY ts) FROM gpu_samples")
    assert values[:2] == [1, 2]
    assert values == list(range(1, len(values) + 1))


def test_recorder_reports_a_deleted_file(path: Path) -> None:
    then = """
input()
recorder.submit([arrived(3, [gpu_row(util_pct=3)])])
print(recorder.close(T0 + 99).error or "no error", flush=True)
"""
    with Writer(path, then) as writer:
        assert writer.line() == "committed"
        path.unlink()
        writer.say()
        assert writer.line().startswith(
            f"{path} was deleted or moved, and nothing more is saved; "
            "move it back, or restart with another file; "
        )
    assert not path.exists()


@pytest.mark.parametrize(
    "tables",
    [
        "CREATE TABLE recordings (artist VARCHAR); CREATE TABLE songs (title VARCHAR)",
        "CREATE VIEW a AS SELECT 1; CREATE VIEW b AS SELECT 2",
        "CREATE SCHEMA music; CREATE TABLE music.recordings (a INT); CREATE TABLE music.songs (b INTEGER)",
    ],
    ids=["tables", "views", "another schema"],
)
def test_a_database_of_something_else_is_left_alone(path: Path, tables: str) -> None:
    with duckdb.connect(str(path)) as connection:
        connection.execute(tables)
    why = f"{path} isn't a recording of gswarm-tui; name one with --db"
    assert refusal(path) == why
    with pytest.raises(StoreError) as caught:
        open_for_reading(path)
    assert str(caught.value) == why
    with duckdb.connect(str(path), read_only=True) as connection:
        assert len(connection.execute("SHOW ALL TABLES").fetchall()) == 2


def test_a_recording_of_a_newer_version_is_left_alone(path: Path) -> None:
    record(path, [])
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE recordings SET schema_version = 99")
    assert (
        refusal(path)
        == f"{path} was made by a newer gswarm-tui; update gswarm-tui, or name another file with --db"
    )


def test_an_older_recording_gets_the_columns_it_lacks(path: Path) -> None:
    record(path, [introduced(gpus=1), arrived(1, [gpu_row(util_pct=1, power_w=10)])])
    with duckdb.connect(str(path)) as connection:
        connection.execute("ALTER TABLE gpu_samples DROP COLUMN power_w")
    record(path, [introduced(gpus=1), arrived(1, [gpu_row(util_pct=2, power_w=20)])])
    assert query(path, "SELECT util_pct, power_w FROM samples ORDER BY 1") == [(1, None), (2, 20)]
    assert len(query(path, "FROM session_summary")) == 0


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "nowhere"
    sentence = f"the folder {folder} doesn't exist; create it, or name another file with --db"
    assert refusal(folder / "run.duckdb") == sentence


def test_missing_write_permission_is_reported() -> None:
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top, "locked")
        folder.mkdir(mode=0o555)
        folder.parent.chmod(0o755)  # those of pytest's own are for their owner alone
        with without_privileges():
            said = refusal(folder / "run.duckdb")
    assert said == (
        f"{folder / 'run.duckdb'} can't be opened because you have no permission; "
        "ask its owner for a copy, or name another file with --db"
    )


@pytest.mark.parametrize(
    ("duckdb_says", "sentence"),
    [
        (
            "IO Error: Trying to read a database file with version number 999, but we can only read versions "
            "between 64 and 67.\nThe database file was created with an newer version of DuckDB.",
            "run.duckdb was made by a newer DuckDB; update duckdb, or name another file with --db",
        ),
        (
            'Failed to commit: Could not write file "/x.wal": Disk quota exceeded',
            "run.duckdb can't be written because its disk is full; free some space",
        ),
        (
            "Cannot open file: Read-only file system",
            "run.duckdb can't be written because its file system is read-only; name another file with --db",
        ),
        (
            "Could not set lock on file",
            "run.duckdb is in use by another program; end that program, or name another file with --db",
        ),
        (
            'IO Error: Could not set lock on file "/lustre/run.duckdb": Function not implemented. See also',
            "run.duckdb can't be used because its file system has no file locks; "
            "use or copy it on another one, such as /tmp",
        ),
        (
            'IO Error: Could not set lock on file "/home/run.duckdb": No locks available. See also',
            "run.duckdb can't be used because its file system has no file locks; "
            "use or copy it on another one, such as /tmp",
        ),
        (
            'Could not set lock on file "run.duckdb": Conflicting lock is held in /usr/bin/python3 (PID 7)',
            "run.duckdb is in use by /usr/bin/python3, process 7; if it is gswarm-tui, `gswarm-tui sql` "
            "queries the file; end that process, or name another file with --db",
        ),
        ("Something new\nand its details", "run.duckdb can't be used: Something new"),
    ],
)
def test_errors_of_duckdb_become_one_sentence(duckdb_says: str, sentence: str) -> None:
    assert explain(duckdb.IOException(duckdb_says), Path("run.duckdb")) == sentence


def test_an_incomplete_copy_is_reported_as_damaged(path: Path) -> None:
    record(path, [introduced(), arrived(1, [gpu_row(), None])])
    whole = path.read_bytes()
    for part in (whole[:5000], whole[:20] + b"x" + whole[21:]):
        path.write_bytes(part)
        with pytest.raises(StoreError) as caught, closing(FileSource(path)) as source:
            source.query("FROM gpu_samples")
        assert str(caught.value) == (
            f"{path} is damaged or incomplete; use another copy, or name another file with --db"
        )


def test_a_file_open_in_this_program_is_reported(path: Path) -> None:
    recorder = FileWriter(path, INFO, lambda _status: None)
    recorder.open()
    try:
        assert refusal(path) == f"{path} is already open in this program"
    finally:
        recorder.close(1.9e9)
