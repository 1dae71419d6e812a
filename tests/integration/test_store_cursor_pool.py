"""Queries while the recorder writes: results contain whole commits, and recording always continues."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from gswarm_tui.fleet.events import Event, RecorderStatus, SessionStarted
from gswarm_tui.store.querying.cursor_pool import CursorPool
from gswarm_tui.store.querying.results import QueryError
from gswarm_tui.store.recording import bulk_insert, database
from gswarm_tui.store.recording.database import Database
from gswarm_tui.store.recording.recorder import FileWriter
from gswarm_tui.store.sql.schema import GPU_SAMPLES
from tests.unit.store_recording import INFO, T0, arrived, gpu_row, introduced, query

GPUS = 8
LONG = "SELECT count(*) FROM range(1000000000000)"


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.duckdb"


@contextmanager
def recording(
    path: Path, query_memory: int | None = None
) -> Iterator[tuple[FileWriter, list[RecorderStatus]]]:
    """Yield a recorder that commits at once; close it at the end."""
    statuses: list[RecorderStatus] = []
    recorder = FileWriter(
        path, INFO, statuses.append, commit_every_s=0.0, retry_every_s=0.05, query_memory=query_memory
    )
    recorder.open()
    try:
        recorder.submit([introduced(gpus=GPUS), SessionStarted("s", T0, "train", T0)])
        yield recorder, statuses
    finally:
        recorder.close(T0 + 10_000)


def frame(seq: int) -> list[Event]:
    return [arrived(seq, [gpu_row(util_pct=seq % 100)] * GPUS)]


def test_results_contain_whole_commits_while_frames_arrive(path: Path) -> None:
    frames, stop = 2_000, threading.Event()
    problems: list[str] = []

    def ask(recorder: FileWriter) -> None:
        queries, before = recorder.queries(), -1
        while not stop.is_set():
            answer = queries.query("SELECT count(*), count(DISTINCT ts), max(ts) FROM samples").rows()
            ((rows, times, _),) = answer
            if rows != times * GPUS or rows < before:
                problems.append(f"{answer} after {before} rows")
            before = rows
            queries.query("FROM session_summary").rows()

    with recording(path) as (recorder, statuses):
        asking = [threading.Thread(target=ask, args=[recorder]) for _ in range(3)]
        for thread in asking:
            thread.start()
        try:
            for seq in range(1, frames + 1):
                recorder.submit(frame(seq))
                if seq % 100 == 0:  # as frames come: not all at once
                    until(lambda: statuses and statuses[-1].committed, "nothing was committed")
                    time.sleep(0.005)
            until(lambda: statuses[-1].committed == {("n1", "life1"): frames}, "not all was committed")
        finally:
            stop.set()
            for thread in asking:
                thread.join()
        assert not problems
        assert not [status.error for status in statuses if status.error]
        assert recorder.queries().query("SELECT count(*) FROM samples").rows() == [(frames * GPUS,)]
    assert query(path, "SELECT count(*), sum(util_pct) FROM samples") == [
        (frames * GPUS, GPUS * sum(seq % 100 for seq in range(1, frames + 1)))
    ]


def test_end_of_recording_ends_running_queries(path: Path) -> None:
    said: list[str] = []

    def ask() -> None:
        try:
            queries.query(LONG).rows()
        except QueryError as error:
            said.append(str(error))

    with recording(path) as (recorder, _):
        queries = recorder.queries()
        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: recorder._pool._running, "the query didn't begin")
        recorder.submit(frame(1))
        status = recorder.close(T0 + 100)
    asking.join()
    assert said == [f"{path} was closed before the query ended"]
    assert status.closed
    assert status.error == ""
    assert query(path, "SELECT count(*) FROM samples") == [(GPUS,)]


def test_a_commit_without_memory_stops_queries(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    insert, failures = bulk_insert.insert, [duckdb.OutOfMemoryException("full")]

    def full_once(*what: Any) -> None:
        if failures and recorder._pool._running:
            raise failures.pop()
        insert(*what)

    with recording(path) as (recorder, statuses):
        monkeypatch.setattr(database, "insert", full_once)
        until(lambda: statuses, "the node wasn't committed")
        answer = recorder.queries().query("SELECT * FROM range(10000000)")
        recorder.submit(frame(1))
        until(lambda: statuses and statuses[-1].committed, "nothing was committed")
        with pytest.raises(QueryError, match=r"^the recorder needed the memory that the query used$"):
            answer.rows()
        assert not failures
        assert [status.error for status in statuses if status.error] == []


@pytest.mark.parametrize(("times", "troubles"), [(1, 0), (2, 1)])
def test_a_commit_without_memory_is_retried_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, times: int, troubles: int
) -> None:
    insert, failures = bulk_insert.insert, [duckdb.OutOfMemoryException("full")] * times

    def full(*what: Any) -> None:
        if failures:
            raise failures.pop()
        insert(*what)

    with recording(path) as (recorder, statuses):
        until(lambda: statuses, "the node wasn't committed")
        monkeypatch.setattr(database, "insert", full)
        recorder.submit(frame(1))
        until(lambda: statuses[-1].committed, "nothing was committed")
    assert len([status.error for status in statuses if status.error]) == troubles
    assert query(path, "SELECT count(*) FROM samples") == [(GPUS,)]


def test_queries_share_the_memory_that_they_were_given(path: Path) -> None:
    with recording(path, query_memory=256 * 1024**2) as (recorder, _):
        ((limit,),) = recorder.queries().query("SELECT current_setting('memory_limit')").rows()
    assert limit == "500.1 MiB"


def test_a_closed_file_cannot_be_queried(path: Path) -> None:
    opened = Database(path, pool := CursorPool(path))
    assert pool.start_query().run("SELECT 1", ()).rows() == [(1,)]
    opened.close()
    with pytest.raises(QueryError, match="isn't open now"):
        pool.start_query()


def test_checkpoint_waits_for_a_query_on_the_log(path: Path) -> None:
    with recording(path) as (recorder, statuses):
        recorder.submit(frame(1))
        until(lambda: statuses and statuses[-1].committed, "nothing was committed")
        answer = recorder.queries().query("SELECT * FROM samples, range(100000)")
        next(answer.batches)
        recorder.submit(frame(2))
        until(lambda: statuses[-1].committed == {("n1", "life1"): 2}, "the next frame wasn't committed")
        recorder._database.checkpoint()
        assert recorder._database.wal_bytes() > 0
        answer.close()
        recorder.submit(frame(3))
        until(lambda: statuses[-1].committed == {("n1", "life1"): 3}, "the last frame wasn't committed")
        recorder._database.checkpoint()
        assert recorder._database.wal_bytes() == 0


def test_checkpoint_releases_cached_blocks(path: Path) -> None:
    opened = Database(path, CursorPool(path))
    rows = 200_000
    random = np.random.default_rng(1)
    columns = {
        "ts": np.arange(rows).astype("datetime64[us]"),
        "gpu_id": np.arange(rows) % 64,
        "power_w": random.random(rows).astype(np.float32) * 700,
        "pcie_tx_mb_s": random.random(rows).astype(np.float32) * 9000,
        "nvlink_tx_mb_s": random.random(rows).astype(np.float32) * 90_000,
    }
    for _ in range(5):
        opened.write([(GPU_SAMPLES, columns)])
        opened.checkpoint()
    opened.checkpoint()
    ((held,),) = opened.execute(
        "SELECT sum(memory_usage_bytes) FROM duckdb_memory() WHERE tag = 'BASE_TABLE'"
    )
    opened.close()
    assert path.stat().st_size > 8_000_000
    assert held <= 1_000_000
