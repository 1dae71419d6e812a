"""Playback returns the recorded frames, and the fleet as it was at any time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gswarm_agent.block import Block
from gswarm_agent.frame import MAX_GAUGE_MS, WARNING, Note, ProcessSample
from gswarm_agent.metrics import GPU_METRICS, HOST_METRICS, LISTINGS, PROCESS_METRICS, Metric
from gswarm_tui.fleet.events import (
    Event,
    EventLogged,
    FindingChanged,
    FrameArrived,
    IntervalChanged,
    MetricsChanged,
    NodeIntroduced,
)
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.playback.recorded_source import RecordedSource
from gswarm_tui.store.querying.file_source import FileSource
from tests.block_rows import rows_of
from tests.recorded import recorded
from tests.tui.scene import BEGINNING, Scene
from tests.unit.store_recording import arrived, finding, gpu_row, introduced, query, record


def run_scene(made: Scene) -> None:
    """Run two minutes in which nearly every kind of event occurs."""
    made.connect().advance(20)
    made.hub.start_session("warm_up", started_at=made.time - 5)
    made.forget_gpu("gpu02", 1).advance(10)
    made.note("gpu01", Note("xid", WARNING, "XID 79: the GPU has fallen off the bus", 0)).advance(5)
    made.hub.stop_session(made.fleet.sessions.running[0].session_id)
    made.lose("gpu02", "connection reset by peer", "is the job over?").advance(12)
    made.hub.start_session("train")
    found = finding(since=made.time, node="gpu01", nodes=("gpu01",))
    made.hub.publish(FindingChanged(made.time, found))
    made.bring_back("gpu02").advance(20)
    made.hub.publish(FindingChanged(made.time, replace(found, until=made.time)))
    made.set_metrics("core", "pcie")
    made.silence("gpu01").set_interval(2.0).advance(8)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Event], Fleet]:
    """Return a recording, its events, and the fleet at the end."""
    path = tmp_path_factory.mktemp("playback") / "run.duckdb"
    scene = Scene(2, 3)
    return path, recorded(path, scene, run_scene), scene.fleet


@pytest.fixture
def replay(made: tuple[Path, list[Event], Fleet]) -> Iterator[RecordedSource]:
    with closing(FileSource(made[0])) as source:
        yield RecordedSource(source, 1)


def as_kept(event: FrameArrived) -> FrameArrived:
    """Return a frame without the parts that the database doesn't store.

    That is: when it arrived, its time on the node's own clock, digits beyond three below 100, that processes
    were looked for where there were none, the longest time of its gauges, and notes, which are events.
    """
    frame = event.frame
    ts = round(event.ts, 3)
    looked = frame.processes
    if looked is not None:
        looked = replace(looked, numbers=in_sql(looked.numbers, PROCESS_METRICS))
    listed = {
        kind: replace(rows, numbers=in_sql(rows.numbers, LISTINGS[kind]))
        for kind, rows in frame.listings.items()
    }
    kept = replace(
        frame,
        ts_ns=round(ts * 1e6) * 1000,
        late_ms=rounded(frame.late_ms),
        gpus=in_sql(frame.gpus, GPU_METRICS),
        host=in_sql(frame.host, HOST_METRICS),
        processes=looked or None,
        notes=(),
        gauge_ms=MAX_GAUGE_MS,
        listings=listed,
    )
    return replace(event, at=ts, ts=ts, frame=kept)


def in_sql(block: Block, metrics: tuple[Metric, ...]) -> Block:
    """Return numbers as their columns store them."""
    rows = [
        tuple(
            value if value is None else rounded(value) if metric.sql == "FLOAT" else round(value)
            for value, metric in zip(row, metrics, strict=True)
        )
        for row in rows_of(block)
    ]
    return block.layout.pack_rows(rows)


def rounded(value: float) -> float:
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return float(np.float32(round(value, digits)))


def frames(events: list[Event]) -> list[FrameArrived]:
    return sorted((e for e in events if isinstance(e, FrameArrived)), key=lambda e: (e.ts, e.node))


def test_frames_are_played_back_as_they_were_recorded(
    made: tuple[Path, list[Event], Fleet], replay: RecordedSource
) -> None:
    played = [
        replace(e, frame=replace(e.frame, processes=e.frame.processes or None, gauge_ms=MAX_GAUGE_MS))
        for e in frames(replay.events(replay.recording.start, replay.end()))
    ]
    assert played == [as_kept(frame) for frame in frames(made[1])]
    assert len(played) > 100


def test_interval_change_is_recorded_and_played_back(
    made: tuple[Path, list[Event], Fleet], replay: RecordedSource
) -> None:
    recorded_changes = [e for e in made[1] if isinstance(e, IntervalChanged)]
    assert [e.interval_ms for e in recorded_changes] == [2000]
    played = replay.events(replay.recording.start, replay.end())
    assert [e for e in played if isinstance(e, IntervalChanged)] == recorded_changes
    (row,) = query(made[0], "SELECT severity, message, detail FROM events WHERE kind = 'interval_changed'")
    assert row == (
        "info",
        "sampling interval changed from 1 s to 2 s",
        '{"old_ms": 1000, "new_ms": 2000}',
    )


def test_switched_metrics_are_recorded_and_played_back(
    made: tuple[Path, list[Event], Fleet], replay: RecordedSource
) -> None:
    (change,) = (e for e in made[1] if isinstance(e, MetricsChanged))
    played = replay.events(replay.recording.start, replay.end())
    assert [e for e in played if isinstance(e, MetricsChanged)] == [change]
    assert query(made[0], "SELECT message FROM events WHERE kind = 'metrics_changed'") == [
        ("metrics: nvlink, activity, health, host, processes switched off",)
    ]
    before, after = replay.fleet(change.at - 1), replay.fleet(replay.end())
    unsupported = before.nodes["gpu02"].unmeasured
    assert unsupported.pop("counters") == "switched off"
    assert set(unsupported.values()) == {"not supported by this GPU"}
    assert before.nodes["gpu02"].processes
    assert set(after.nodes["gpu02"].unmeasured.values()) == {"switched off"}
    assert not after.nodes["gpu02"].processes
    assert query(
        made[0],
        "SELECT count(pcie_tx_mb_s) > 0, count(nvlink_tx_mb_s) FROM gpu_samples "
        f"WHERE ts > make_timestamp({round(change.at * 1e6)})",
    ) == [(True, 0)]


def test_adjacent_ranges_hold_each_event_once_in_order(replay: RecordedSource) -> None:
    start, end = replay.recording.start, replay.end()
    parts: list[Event] = []
    edges = [*np.arange(start, end, 7.3).tolist(), end]
    for low, high in itertools.pairwise(edges):
        parts += replay.events(low, high)
    assert parts == replay.events(start, end)
    assert [event.at for event in parts] == sorted(event.at for event in parts)


def test_replayed_events_are_logged_once(
    made: tuple[Path, list[Event], Fleet], replay: RecordedSource
) -> None:
    fleet = Fleet(replay.recording.names, derive_events=False)
    for event in replay.events(replay.recording.start - 1, replay.end()):
        fleet.apply(event)
    logged = [e for e in made[1] if isinstance(e, EventLogged)]
    assert sorted(map(repr, fleet.event_log)) == sorted(map(repr, logged))


@pytest.mark.parametrize("seconds", [3, 21, 33, 40.5, 50, 66, 70, 73.5])
def test_fleet_at_a_time_equals_the_replayed_fleet(replay: RecordedSource, seconds: float) -> None:
    at = BEGINNING + seconds
    sought, played = replay.fleet(at), Fleet(replay.recording.names, derive_events=False)
    for event in replay.events(replay.recording.start - 1, at):
        played.apply(event)
    for one, other in zip(sought.nodes.values(), played.nodes.values(), strict=True):
        assert (one.name, one.phase, one.reason, one.remedy) == (
            other.name,
            other.phase,
            other.reason,
            other.remedy,
        )
        assert one.standing(at) is other.standing(at)
        assert one.interval_ms == other.interval_ms == (2000 if seconds >= 67 else 1000)
        assert (one.hello, one.mine, one.frames, one.reconnects) == (
            other.hello,
            other.mine,
            other.frames,
            other.reconnects,
        )
        np.testing.assert_array_equal(one.gpus, other.gpus)
        np.testing.assert_array_equal(one.host, other.host)
        assert one.processes == other.processes
        assert one.listings == other.listings
        assert (one.gpu_history is None) is (other.gpu_history is None)
        if one.gpu_history is not None and other.gpu_history is not None:
            times, values = one.gpu_history.tables()
            other_times, other_values = other.gpu_history.tables()
            np.testing.assert_array_equal(times, other_times)
            np.testing.assert_allclose(values, other_values, rtol=1e-6)
            intervals = one.gpu_history.intervals(), other.gpu_history.intervals()
            np.testing.assert_allclose(*intervals, atol=0.001)
    assert sought.interval_ms == played.interval_ms
    assert sought.findings == played.findings
    assert [one.until is None for one in sought.findings.values()] == [True] * (48 < seconds < 67) + [
        False
    ] * (seconds >= 67)
    assert [repr(h) for h in sought.event_log] == [repr(h) for h in played.event_log]
    assert sought.energy_j == pytest.approx(played.energy_j)
    for session, counted in zip(
        sought.sessions.sessions.values(), played.sessions.sessions.values(), strict=True
    ):
        assert (session.name, session.started_at, session.ended_at) == (
            counted.name,
            counted.started_at,
            counted.ended_at,
        )
        assert session.util_sum == pytest.approx(counted.util_sum)
        assert session.util_s == pytest.approx(counted.util_s)
        assert session.energy_j == pytest.approx(counted.energy_j)
        assert max(session.covered_s.values()) <= session.seconds(at) + 0.01
        assert min(session.covered_s.values()) >= min(counted.covered_s.values()) - 1.01


def test_timeline_has_sessions_and_jump_targets(replay: RecordedSource) -> None:
    track = replay.timeline()
    assert [session.name for session in track.sessions] == ["warm_up", "train"]
    assert any("XID 79" in stop.description for stop in track.targets)
    assert not any("connected" in stop.description for stop in track.targets)


def test_ended_processes_disappear_in_replay(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    unmeasured = (None,) * len(PROCESS_METRICS)
    process = ProcessSample(0, 4711, "ada", "python train.py", 0, 0, unmeasured, "0-7", "S", "futex_wait")
    row = gpu_row(util_pct=50)
    seen = dict.fromkeys(range(1, 20, 2), (process,))
    record(path, [introduced(), *(arrived(n, [row, row], processes=seen.get(n)) for n in range(1, 60))])
    with closing(FileSource(path)) as source:
        replay = RecordedSource(source, 1)
        start = replay.recording.start
        assert replay.fleet(start + 24).nodes["n1"].processes == (process,)
        assert replay.fleet(start + 40).nodes["n1"].processes == ()
        fleet = replay.fleet(start + 15)
        for event in replay.events(start + 15, start + 40):
            fleet.apply(event)
        assert fleet.nodes["n1"].processes == ()


def test_restarted_agents_and_changed_machines_are_introduced(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    row = gpu_row(util_pct=50)
    first = [arrived(seq, [row, row]) for seq in (1, 2, 3)]
    second = [arrived(seq, [row, row], life="life2", ts=T + seq) for seq in (1, 2) for T in [first[-1].ts]]
    third = [arrived(1, [row], life="life3", ts=first[-1].ts + 10)]
    later = first[-1].ts + 0.5
    record(
        path,
        [
            introduced(),
            *first,
            introduced(life="life2", at=later),
            *second,
            introduced(life="life3", at=later + 8, gpus=1, boot_id="boot2"),
            *third,
        ],
    )
    with closing(FileSource(path)) as source:
        replay = RecordedSource(source, 1)
        events = replay.events(replay.recording.start - 1, replay.end())
    met = [e for e in events if isinstance(e, NodeIntroduced)]
    assert [(e.hello.life, len(e.hello.gpus), e.hello.host.boot_id) for e in met] == [
        ("life1", 2, "boot1"),
        ("life2", 2, "boot1"),
        ("life3", 1, "boot2"),
    ]
    assert [(e.life, e.frame.seq) for e in frames(events)] == [
        ("life1", 1),
        ("life1", 2),
        ("life1", 3),
        ("life2", 1),
        ("life2", 2),
        ("life3", 1),
    ]


def test_one_of_several_recordings_is_replayed_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    row = gpu_row(util_pct=50)
    record(path, [introduced(), arrived(1, [row, row])])
    record(path, [introduced("n2", life="other"), arrived(2, [row, row], node="n2", life="other")])
    with closing(FileSource(path)) as source:
        for number, node in ((1, "n1"), (2, "n2")):
            replay = RecordedSource(source, number)
            assert [e.node for e in frames(replay.events(0, 2e9))] == [node]
            assert list(replay.fleet(replay.end()).nodes) == [node]
