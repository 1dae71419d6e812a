from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from gswarm_agent.frame import GpuLink, ProcessSample
from gswarm_tui.fleet.events import (
    Event,
    EventLogged,
    LinkChanged,
    LinkMeasured,
    NodeIntroduced,
    Phase,
    RecorderStatus,
    SessionChanged,
    SessionStarted,
    SessionStopped,
    weight,
)
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.reading.recording_reader import RecordingReader
from gswarm_tui.store.recording.batch import Batch
from gswarm_tui.store.recording.database import Database, DataRefusedError
from gswarm_tui.store.recording.known_ids import KnownIds
from gswarm_tui.store.recording.recorder import FileWriter
from gswarm_tui.store.sql.schema import SCHEMA_VERSION
from tests.unit.store_recording import (
    INFO,
    T0,
    arrived,
    gpu_row,
    host_row,
    introduced,
    process_row,
    query,
    record,
)


def at(seconds: float) -> datetime:
    """Convert Unix seconds to a TIMESTAMP as DuckDB returns it: naive, in UTC."""
    return datetime(1970, 1, 1) + timedelta(seconds=seconds)  # noqa: DTZ001


def eventually(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.01)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.duckdb"


def test_a_recorded_frame_has_its_values(path: Path) -> None:
    gpus = [
        gpu_row(util_pct=97, mem_used_mib=40_000, power_w=512.4, energy_mj=2**40 + 1, clock_reasons=4),
        gpu_row(util_pct=3),
    ]
    record(path, [introduced(), arrived(1, gpus, host=host_row(cpu_pct=12.5, load_1m=3))])
    samples = query(
        path,
        "SELECT ts, node, gpu_index, util_pct, power_w, energy_counter_j * 1000, clock_reasons "
        "FROM samples ORDER BY 3",
    )
    assert samples == [
        (at(T0 + 1), "n1", 0, 97, 512.0, 2**40 + 1, 4),
        (at(T0 + 1), "n1", 1, 3, None, None, None),
    ]
    hosts = query(path, "SELECT ts, seq, late_ms, cpu_pct, load_1m, memory_used_mib FROM host_samples")
    assert hosts == [(at(T0 + 1), 1, 0.5, 12.5, 3, None)]


def test_a_frame_that_comes_twice_is_written_once(path: Path) -> None:
    frames = [arrived(i, [gpu_row(util_pct=i)]) for i in (1, 2, 3)]
    record(
        path,
        [introduced(gpus=1), *frames, introduced(gpus=1), *frames[1:], arrived(4, [gpu_row(util_pct=4)])],
    )
    assert query(path, "SELECT util_pct FROM gpu_samples ORDER BY ts") == [(1,), (2,), (3,), (4,)]
    assert query(path, "SELECT life, last_seq, frames, lost_frames FROM links") == [("life1", 4, 4, 0)]


def test_frames_and_last_sequence_are_committed_together(path: Path) -> None:
    """If ``links`` were committed separately, a kill between both commits would lose or repeat frames."""
    database = Database(path)
    known_ids = KnownIds(database.begin_recording(INFO), 1, 1, 1)
    tables = list(Batch(known_ids, [introduced(gpus=1), arrived(1, [gpu_row(util_pct=1)])]).columns())
    assert [table.name for table, _ in tables] == ["nodes", "gpus", "links", "gpu_samples", "host_samples"]
    for index, (table, _) in enumerate(tables):
        first = table.columns[: len(table.key) + 1]
        nothing = {column.name: np.array([None], dtype=object) for column in first}  # where NULL is refused
        refused = [*tables[:index], (table, nothing), *tables[index + 1 :]]
        with pytest.raises(DataRefusedError):
            database.write(refused)
        assert database.execute("SELECT * FROM links") == database.execute("SELECT * FROM host_samples") == []
    database.write(tables)
    database.close()
    assert query(path, "SELECT last_seq, (SELECT max(seq) FROM host_samples) FROM links") == [(1, 1)]


def test_missing_frames_are_counted_as_lost(path: Path) -> None:
    row = gpu_row(util_pct=50)
    record(path, [introduced(gpus=1), *(arrived(i, [row]) for i in (1, 2, 6, 7))])
    intervals = query(path, "SELECT interval_ms FROM gpu_samples ORDER BY ts")
    assert intervals == [(None,), (1000,), (None,), (1000,)]
    assert query(path, "SELECT frames, lost_frames FROM links") == [(4, 3)]


def test_a_restarted_agent_begins_its_sequence_again(path: Path) -> None:
    row = gpu_row(util_pct=50)
    again = introduced(gpus=1, life="life2")
    record(
        path,
        [introduced(gpus=1), arrived(1, [row]), again, arrived(1, [row], life="life2", ts=T0 + 9)],
    )
    assert query(path, "SELECT count(*) FROM nodes") == [(1,)]
    assert query(path, "SELECT count(*) FROM gpu_samples") == [(2,)]


def test_a_node_that_comes_back_with_other_gpus_is_a_new_row(path: Path) -> None:
    record(
        path,
        [
            introduced(gpus=2),
            arrived(1, [gpu_row(util_pct=1), gpu_row(util_pct=2)]),
            introduced(gpus=1, life="life2"),
            arrived(1, [gpu_row(util_pct=3)], life="life2", ts=T0 + 2),
            introduced(gpus=1, life="life3", boot_id="boot2"),
            arrived(1, [gpu_row(util_pct=4)], life="life3", ts=T0 + 3),
        ],
    )
    nodes = query(path, "SELECT node_id, node, boot_id FROM nodes ORDER BY node_id")
    assert nodes == [(1, "n1", "boot1"), (2, "n1", "boot1"), (3, "n1", "boot2")]
    samples = query(path, "SELECT node_id, gpu_id, util_pct FROM samples ORDER BY util_pct")
    assert samples == [(1, 1, 1), (1, 2, 2), (2, 3, 3), (3, 4, 4)]


def test_process_texts_of_any_kind_are_recorded(path: Path) -> None:
    odd = "python train.py '; DROP TABLE gpus; -- \udcff\x00é"
    processes = (
        ProcessSample(
            1,
            4321,
            "ada",
            odd,
            3,
            1,
            process_row(gpu_memory_mib=70_000, sm_pct=88),
            "0-7",
            "D",
            odd,
            *("4711", "batch", "torch 2.14.1", "2.30.7", odd),
        ),
        ProcessSample(0, 4322, None, None, None, None, process_row()),
    )
    record(path, [introduced(), arrived(1, [gpu_row(power_w=1)] * 2, processes=processes)])
    rows = query(
        path,
        "SELECT gpu_index, pid, rank, local_rank, user_name, command, gpu_memory_mib, sm_pct, cpu_pct, "
        "cpus_allowed, state, wchan, slurm_job_id, slurm_step_id, framework, nccl, container "
        "FROM process_samples JOIN gpus USING (gpu_id) ORDER BY pid",
    )
    assert query(path, "SELECT gpu_index, newest_rank FROM samples ORDER BY ALL") == [(0, None), (1, 3)]
    assert rows == [
        (
            1,
            4321,
            3,
            1,
            "ada",
            odd.replace("\udcff", "?"),
            70_000,
            88,
            None,
            "0-7",
            "D",
            odd.replace("\udcff", "?"),
            *("4711", "batch", "torch 2.14.1", "2.30.7", odd.replace("\udcff", "?")),
        ),
        (0, 4322, *(None,) * 15),
    ]


def test_sessions_overlap_begin_in_the_past_and_change(path: Path) -> None:
    record(
        path,
        [
            SessionStarted("a", T0 + 10, "load", T0 - 110, note="warm"),
            SessionStarted("b", T0 + 20, "train ✓'\"", T0 + 20),
            SessionChanged("a", T0 + 25, name="loading"),
            SessionStopped("a", T0 + 30, T0 + 29.5),
            SessionChanged("nobody", T0 + 31, name="x"),
        ],
        ended_at=T0 + 40,
    )
    sessions = query(
        path, "SELECT name, started_at, ended_at, status, note FROM sessions ORDER BY session_id"
    )
    assert sessions == [
        ("loading", at(T0 - 110), at(T0 + 29.5), "stopped", "warm"),
        ("train ✓'\"", at(T0 + 20), at(T0 + 40), "ended", ""),
    ]


def test_events_have_their_node_and_gpu(path: Path) -> None:
    record(
        path,
        [
            introduced(),
            EventLogged(T0 + 1, "xid", "error", "XID 79: the GPU has fallen off the bus", node="n1", gpu=1),
            EventLogged(T0 + 2, "mark", "info", "here", detail='{"x": 1}'),
            EventLogged(
                T0 + 3, "link_lost", "error", "no such host", node="ghost", gpu=3, detail="look at DNS"
            ),
        ],
    )
    events = query(
        path,
        "SELECT ts, node, gpu_index, kind, severity, message, detail FROM events "
        "LEFT JOIN nodes USING (node_id) LEFT JOIN gpus USING (gpu_id) ORDER BY ts",
    )
    assert events == [
        (at(T0 + 1), "n1", 1, "xid", "error", "XID 79: the GPU has fallen off the bus", None),
        (at(T0 + 2), None, None, "mark", "info", "here", '{"x": 1}'),
        (at(T0 + 3), "ghost", None, "link_lost", "error", "no such host", "look at DNS"),
    ]


def test_links_store_clock_offset_and_reconnects(path: Path) -> None:
    record(
        path,
        [
            LinkChanged("n1", T0, Phase.CONNECTING),
            LinkChanged("n1", T0 + 1, Phase.LOST, "connection refused"),
            LinkChanged("n1", T0 + 4, Phase.LIVE),
            introduced(at=T0 + 4),
            LinkMeasured("n1", T0 + 4, -0.25, 0.002),
            LinkChanged("n1", T0 + 5, Phase.LOST, "connection reset"),
            LinkChanged("n1", T0 + 6, Phase.LIVE),
            introduced(at=T0 + 6),
            LinkChanged("n1", T0 + 7, Phase.ENDED),
            LinkChanged("n2", T0, Phase.LOST, "no such host"),
        ],
    )
    links = query(
        path,
        "SELECT node, hostname, clock_offset_s, round_trip_s, reconnects "
        "FROM nodes LEFT JOIN links USING (node_id) ORDER BY node",
    )
    assert links == [("n1", "n1.cluster", -0.25, 0.002, 1), ("n2", None, None, None, None)]


def test_a_second_recording_goes_into_the_same_file_beside_the_first(path: Path) -> None:
    session = SessionStarted("s", T0 + 1, "first", T0 + 1)
    record(path, [introduced(gpus=1), session, arrived(1, [gpu_row(util_pct=1)])])
    record(path, [introduced(gpus=1), session, arrived(1, [gpu_row(util_pct=2)])])
    samples = query(path, "SELECT recording_id, node_id, gpu_id, util_pct FROM samples ORDER BY util_pct")
    assert samples == [(1, 1, 1, 1), (2, 2, 2, 2)]
    assert query(path, "SELECT session_id, recording_id FROM sessions") == [(1, 1), (2, 2)]
    recordings = query(
        path,
        "SELECT recording_id, started_at, ended_at, host, user_name, slurm_job_id, slurm_cluster, command, "
        "interval_ms, tool_version, schema_version FROM recordings",
    )
    rest = (
        at(T0),
        at(T0 + 100),
        "login1",
        "ada",
        "4711",
        "tiny",
        INFO.command,
        1000,
        "0.1.0",
        SCHEMA_VERSION,
    )
    assert recordings == [(1, *rest), (2, *rest)]


def test_the_status_counts_what_is_committed(path: Path) -> None:
    seen: list[RecorderStatus] = []
    recorder = FileWriter(path, INFO, seen.append, commit_every_s=0)
    recorder.open()
    try:
        row = gpu_row(util_pct=1)
        recorder.submit([introduced(), arrived(1, [row, row]), arrived(2, [row, None])])
        eventually(lambda: bool(seen), "a status")
        assert seen[0].rows == 5
        assert seen[0].committed == {("n1", "life1"): 2}
        assert seen[0].file_bytes > 0
        assert (seen[0].waiting, seen[0].error, seen[0].closed) == (0, "", False)
    finally:
        recorder.close(T0 + 9)
    assert seen[-1].closed


def test_events_are_committed_at_once_on_request(path: Path) -> None:
    recorder = FileWriter(path, INFO, lambda _status: None, commit_every_s=3600)
    recorder.open()
    try:
        for seq in (1, 2, 3):
            recorder.submit([*([introduced()] if seq == 1 else []), arrived(seq, [gpu_row(util_pct=1)] * 2)])
            assert recorder.commit().result(30).committed == {("n1", "life1"): seq}
        assert recorder.queries().query("SELECT count(*) FROM samples").rows() == [(6,)]
    finally:
        recorder.close(T0 + 9)
    assert recorder.commit().result(0).closed


def test_an_event_that_cannot_be_stored_is_skipped_alone(path: Path) -> None:
    wrong = replace(arrived(2, [gpu_row(util_pct=2)]), ts=float("inf"))
    right: list[Event] = [introduced(gpus=1), arrived(1, [gpu_row(util_pct=1)])]
    record(path, [*right, wrong, arrived(3, [gpu_row(util_pct=3)])])
    assert query(path, "SELECT util_pct FROM gpu_samples ORDER BY ts") == [(1,), (3,)]
    assert query(path, "SELECT frames, lost_frames FROM links") == [(2, 1)]


def test_refused_frames_come_again_without_a_gap(path: Path) -> None:
    seen: list[RecorderStatus] = []
    stuck, go_on = threading.Event(), threading.Event()

    def hold(status: RecorderStatus) -> None:
        seen.append(status)
        stuck.set()
        assert go_on.wait(30)

    row = [gpu_row(util_pct=1)]
    keep_bytes = 10 * weight(arrived(1, row))
    recorder = FileWriter(path, INFO, hold, commit_every_s=0, keep_bytes=keep_bytes)
    recorder.open()
    try:
        recorder.submit([introduced(gpus=1), arrived(1, row)])
        assert stuck.wait(30)
        for seq in range(2, 42):
            recorder.submit([arrived(seq, row)])
        assert recorder.status().waiting <= 10
        go_on.set()
        eventually(lambda: seen[-1].refused == ("n1",), "the node is named")
        recorder.submit([arrived(42, row)])
        last = seen[-1].committed["n1", "life1"]
        assert last < 15
        eventually(lambda: recorder.status().waiting == 0, "room again")
        recorder.submit([introduced(gpus=1)])
        for seq in range(last + 1, 51):
            recorder.submit([arrived(seq, row)])
            eventually(lambda: recorder.status().waiting == 0, "written")
        assert recorder.status().refused == ()
    finally:
        go_on.set()
        assert recorder.close(T0 + 200).error == ""
    assert query(path, "SELECT frames, last_seq, lost_frames FROM links") == [(50, 50, 0)]
    assert query(path, "SELECT count(*) FROM host_samples WHERE interval_ms IS NULL") == [(1,)]


def test_close_returns_after_its_timeout_when_the_disk_hangs(path: Path) -> None:
    go_on = threading.Event()

    def hold(_status: RecorderStatus) -> None:
        assert go_on.wait(30)

    recorder = FileWriter(path, INFO, hold, commit_every_s=0)
    recorder.open()
    try:
        recorder.submit([introduced()])
        status = recorder.close(T0 + 1, timeout_s=0.1)
        assert not status.closed
        assert status.error == f"{path} could not be written within 0.1 s"
    finally:
        go_on.set()
        recorder.close(T0 + 1)


def test_allocated_gpus_are_stored_where_known(path: Path) -> None:
    def introduced_with_minors(node: str, *minors: int | None) -> NodeIntroduced:
        event = introduced(node, gpus=len(minors))
        gpus = tuple(replace(gpu, minor=minor) for gpu, minor in zip(event.hello.gpus, minors, strict=True))
        return replace(event, hello=replace(event.hello, gpus=gpus))

    recorder = FileWriter(path, INFO, lambda _status: None, allocation={"n1": frozenset({0, 2})})
    recorder.open()
    recorder.submit([introduced_with_minors("n1", 0, 1, 2, None), introduced_with_minors("n2", 0)])
    recorder.close(T0 + 1)
    found = query(path, "SELECT node, gpu_index, allocated FROM gpus JOIN nodes USING (node_id) ORDER BY ALL")
    assert found == [
        ("n1", 0, True),
        ("n1", 1, False),
        ("n1", 2, True),
        ("n1", 3, False),
        ("n2", 0, None),
    ]


def test_connections_of_gpus_are_stored_again_after_a_change(path: Path) -> None:
    def links(count: int) -> tuple[GpuLink, ...]:
        way = f"NV{count}", count, "4.0", 26.5 * count
        return GpuLink(0, "GPU1", *way), GpuLink(1, "GPU0", *way), GpuLink(1, "host", "PCIe", 16, "5.0", 63.0)

    events = [introduced(at=T0 + at, links=links(count)) for at, count in ((0, 18), (1, 18), (2, 17))]
    record(path, [events[0], arrived(1, [gpu_row(util_pct=1)] * 2), *events[1:]])
    assert query(path, "SELECT epoch(ts) - 1800000000, gpu_id, peer, peer_index, kind FROM gpu_links") == [
        (at, *row)
        for at, kind in ((0, "NV18"), (2, "NV17"))
        for row in ((1, "GPU1", 1, kind), (2, "GPU0", 0, kind), (2, "host", None, "PCIe"))
    ]
    with closing(FileSource(path)) as file:
        (machine,) = RecordingReader(file, 1).machines.values()
    assert machine.hello.links == links(17)
