"""Sums by minute equal what samples say: late frames, silent GPUs, changing intervals, resuming."""

from __future__ import annotations

from contextlib import closing
from dataclasses import astuple, fields
from pathlib import Path

import duckdb
import numpy as np
import pytest

from gswarm_tui.analysis import periods
from gswarm_tui.analysis.summary_data import Figures, Summary, summarize, summarize_all
from gswarm_tui.cli import main
from gswarm_tui.fleet.events import Event, SessionStarted, SessionStopped
from gswarm_tui.playback.recorded_source import RecordedSource
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.recording.database import Database
from gswarm_tui.store.recording.recorder import FileWriter
from gswarm_tui.store.sql.schema import GPU_SAMPLES
from tests.unit.store_recording import INFO, T0, arrived, decided, gpu_row, introduced, query, record


def summaries_of(path: Path) -> list[Summary]:
    """Return the summary of each session, which a list and the view of all sessions must have, too."""
    with closing(FileSource(path)) as source:
        sessions = periods.load_sessions(source)
        found = [summarize(source, one) for one in sessions]
        assert summarize_all(source, sessions) == found
        names = [one.name for one in fields(Figures)]
        sums = {
            (one.period.name, *astuple(figures))
            for one in found
            for figures in (one.whole, *one.nodes, *one.gpus)
            if figures is not None
        }
        assert set(source.query(f"SELECT session, {', '.join(names)} FROM session_summary").rows()) == sums
    return found


def made(seed: int, frames: int = 700) -> list[Event]:
    """Return some minutes of three nodes: intervals change, frames are lost or late, a GPU is silent."""
    random = np.random.default_rng(seed)
    events: list[Event] = [introduced(name, gpus=2) for name in ("n1", "n2", "n3")]
    late: list[Event] = []
    seq, ts, counter = 0, T0, np.zeros(2)
    for frame in range(frames):
        step = float(random.choice([0.1, 1, 1, 2, 75 if frame % 200 == 9 else 1]))
        seq, ts = seq + int(random.choice([1, 1, 1, 2])), round(ts + step, 1)
        counter = counter * (random.random() > 0.01) + random.integers(0, 700_000, 2)
        for name in ("n1", "n2", "n3"):
            rows = [
                gpu_row(
                    util_pct=None if random.random() < 0.1 else int(random.choice([0, 5, 40, 97])),
                    power_w=None if random.random() < 0.1 else int(random.integers(60, 700)),
                    mem_used_mib=int(random.integers(0, 80_000)),
                    temp_c=int(random.integers(20, 90)),
                    sm_clock_mhz=None if random.random() < 0.1 else int(random.integers(300, 1980)),
                    sm_active_pct=float(random.integers(0, 100)),
                    tensor_active_pct=None if random.random() < 0.1 else int(random.integers(0, 100)),
                    dram_active_pct=float(random.integers(0, 100)),
                    throttle_power_pct=int(random.integers(0, 300)),
                    energy_mj=None if random.random() < 0.2 else int(mj),
                )
                for mj in counter
            ]
            arrival = arrived(seq, [rows[0], None if name == "n2" else rows[1]], node=name, ts=ts)
            (late if name == "n3" and frame > 150 else events).append(arrival)
    for number, began in enumerate((0, 61.3, 200, 431.7)):
        until = float(random.uniform(began, ts - T0 + 20))
        key = f"s{number}"
        events += [
            SessionStarted(key, T0 + until, key, T0 + began),
            SessionStopped(key, T0 + until, T0 + until),
        ]
    return [*events, *late]


@pytest.mark.parametrize(("seed", "crash"), [(0, False), (1, True)])
def test_summaries_from_minutes_equal_those_from_samples(tmp_path: Path, seed: int, crash: bool) -> None:
    path, events = tmp_path / "run.duckdb", decided(made(seed))
    pieces = [events[at : at + 97] for at in range(0, len(events), 97)]
    recorder = FileWriter(path, INFO, lambda _status: None, commit_every_s=0)
    recorder.open()
    for number, piece in enumerate(pieces):
        if crash and number == len(pieces) // 2:
            recorder.close(None)
            recorder = FileWriter(path, 1, lambda _status: None, commit_every_s=0)
            recorder.open()
        recorder.submit(piece)
    assert recorder.close(T0 + 1200).error == ""
    found = summaries_of(path)
    (minutes,) = query(path, "SELECT count(DISTINCT minute) FROM gpu_minutes")
    assert minutes[0] > 3
    database = Database(path)
    database.execute("DELETE FROM gpu_minutes")
    database.close()
    assert summaries_of(path) == found
    assert len(found) == 4


def test_late_sample_deletes_and_renews_the_sums_of_its_minute(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    nodes = [introduced(name, gpus=1) for name in ("n1", "n2")]
    frames = [arrived(i, [gpu_row(util_pct=50)]) for i in range(1, 200)]
    late = [arrived(i, [gpu_row(util_pct=90)], node="n2") for i in range(1, 100)]
    recorder = FileWriter(path, INFO, lambda _status: None)
    recorder.open()
    recorder.submit(decided([*nodes, *frames]))
    recorder.close(None)
    once = query(path, "SELECT minute, gpu_id, samples FROM gpu_minutes ORDER BY ALL")
    assert sum(samples for _, _, samples in once) == 199
    recorder = FileWriter(path, 1, lambda _status: None)
    recorder.open()
    recorder.submit(late)
    recorder.close(T0 + 300)
    counts = "SELECT gpu_id, sum(samples) FROM gpu_minutes GROUP BY gpu_id ORDER BY ALL"
    assert query(path, counts) == [(1, 199), (2, 99)]


def test_sums_vanish_in_the_transaction_that_adds_samples_to_their_minute(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    record(path, [introduced(gpus=1), *(arrived(i, [gpu_row(util_pct=50)]) for i in range(1, 200))])
    before = query(path, "SELECT count(*) FROM gpu_minutes")
    database = Database(path)
    at = np.array([round((T0 + 61.5) * 1e6)], dtype="datetime64[us]")
    database.write([(GPU_SAMPLES, {"ts": at, "gpu_id": np.array([1]), "util_pct": np.array([90.0])})])
    database.close()
    assert query(path, "SELECT count(*) + 1 FROM gpu_minutes") == before
    late = f"date_trunc('minute', make_timestamp({round((T0 + 61.5) * 1e6)}))"
    assert query(path, f"SELECT count(*) FROM gpu_minutes WHERE minute = {late}") == [(0,)]


def hours(node: str, power_w: int) -> list[Event]:
    """Return three hours of a GPU without an energy counter, at 30 s."""
    rows = [gpu_row(util_pct=i % 90, power_w=power_w) for i in range(1, 361)]
    frames = [arrived(i, [row], node=node, ts=T0 + 30 * i) for i, row in enumerate(rows, 1)]
    return [introduced(node, gpus=1), *frames]


def test_looking_back_takes_sums_of_its_own_recording(tmp_path: Path) -> None:
    path, end = tmp_path / "run.duckdb", T0 + 10_800
    session: list[Event] = [SessionStarted("s", end, "s", T0 + 1005), SessionStopped("s", end, T0 + 9005)]
    record(path, hours("n2", 600), ended_at=end)
    record(path, [*hours("n1", 100), *session], ended_at=end)
    for summed in (True, False):
        if not summed:  # as after a crash
            with duckdb.connect(str(path)) as connection:
                connection.execute("DELETE FROM gpu_minutes")
        with closing(FileSource(path)) as source:
            fleet = RecordedSource(source, 2).fleet(end)
        (looked_back,) = fleet.sessions.sessions.values()
        (summed_up,) = summaries_of(path)
        assert summed_up.whole is not None
        assert fleet.energy_j == pytest.approx(100 * 10_770)
        assert looked_back.energy_j == pytest.approx(100 * 8000)
        assert looked_back.mean_util == pytest.approx(summed_up.whole.util_mean_pct)
        assert looked_back.mean_power_w == 100
        assert looked_back.covered_s == {"n1": pytest.approx(8000)}


def test_imported_samples_are_summed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    session: list[Event] = [SessionStarted("s", T0, "s", T0), SessionStopped("s", T0 + 10_800, T0 + 10_800)]
    record(Path("run.duckdb"), [*hours("n1", 100), *session], ended_at=T0 + 10_800)
    assert main(["export", "s", "--db", "run.duckdb", "-o", "run.parquet"]) == 0
    assert main(["import", "run.parquet", "--db", "again.duckdb"]) == 0
    assert query(Path("again.duckdb"), "SELECT sum(samples) FROM gpu_minutes") == [(360,)]
    (of_run,), (of_import,) = summaries_of(Path("run.duckdb")), summaries_of(Path("again.duckdb"))
    assert of_import.whole == of_run.whole
