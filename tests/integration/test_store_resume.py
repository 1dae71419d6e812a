"""Resuming a recording whose head was killed: no row twice; numbers and sessions continue."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gswarm_agent.frame import ERROR, WARNING
from gswarm_agent.wire import ENDED_BY, FRAMES_REMAIN, JOB_ENDED, SENT_ALL
from gswarm_tui.fleet.events import (
    WAITING,
    Event,
    EventLogged,
    FrameArrived,
    FramesLost,
    LinkChanged,
    LinkMeasured,
    NodeIntroduced,
    Phase,
    SessionChanged,
    SessionStarted,
    SessionStopped,
    StopUndone,
    agent_data_lost,
)
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.recording.recorder import FileWriter
from gswarm_tui.store.recording.resume import Resumed, interrupted
from tests.unit.store_recording import INFO, T0, arrived, gpu_row, hello, introduced, query, record

UID = "2f1c1e5e-0000-4000-8000-000000000001"
KNOWN = replace(INFO, uid=UID, options='{"launcher": "ssh"}')


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.duckdb"


def leave(path: Path, *events: Event) -> None:
    """Record these events and leave the recording without an end."""
    recorder = FileWriter(path, KNOWN, lambda _status: None)
    recorder.open()
    recorder.submit(events)
    assert recorder.close(None).error == ""


def go_on(path: Path, *events: Event, ended_at: float | None = T0 + 100, number: int = 1) -> Resumed:
    recorder = FileWriter(path, number, lambda _status: None)
    recorder.open()
    assert recorder.resumed is not None
    recorder.submit(events)
    assert recorder.close(ended_at).error == ""
    return recorder.resumed


def frames(first: int, last: int, life: str = "life1", node: str = "n1") -> list[FrameArrived]:
    row = gpu_row(util_pct=50, power_w=100, energy_mj=0)
    return [arrived(n, [row], node, life) for n in range(first, last + 1)]


def test_repeated_frames_after_resume_are_written_once(path: Path) -> None:
    leave(path, introduced(gpus=1), LinkMeasured("n1", T0, 0.25, 0.001), *frames(1, 5))
    resumed = go_on(path, introduced(gpus=1), LinkChanged("n1", T0 + 6, Phase.LIVE), *frames(3, 8))
    (life,) = resumed.lives
    assert (life.node, life.life, life.seq, life.offset_s) == ("n1", "life1", 5, 0.25)
    assert (life.ts_ns, life.at) == (round((T0 + 5) * 1e9), T0 + 5)
    assert resumed.rows == 10
    assert query(path, "SELECT seq, interval_ms FROM host_samples ORDER BY ts") == [
        (n, None if n == 1 else 1000) for n in range(1, 9)
    ]
    links = query(path, "SELECT life, last_seq, frames, lost_frames, reconnects FROM links")
    assert links == [("life1", 8, 8, 0, 1)]
    assert query(path, "SELECT count(*) FROM nodes") == query(path, "SELECT count(*) FROM gpus") == [(1,)]
    assert query(path, "SELECT count(*), count(ended_at) FROM recordings") == [(1, 1)]


def test_frames_of_a_former_boot_belong_to_its_machine(path: Path) -> None:
    leave(path, introduced(gpus=1), *frames(1, 2))
    former = NodeIntroduced("n1", T0 + 20, hello("n1", 1), former=True)
    now = introduced(gpus=1, life="life2", boot_id="boot2")
    twice: list[Event] = [former, *frames(2, 4), now, *frames(1, 2, "life2")]
    go_on(path, *twice, *twice)
    found = query(
        path,
        "SELECT boot_id, life, last_seq, frames, lost_frames "
        "FROM links JOIN nodes USING (node_id) ORDER BY 1",
    )
    assert found == [("boot1", "life1", 4, 4, 0), ("boot2", "life2", 2, 2, 0)]
    assert query(path, "SELECT count(*) FROM nodes") == [(2,)]
    samples = query(
        path, "SELECT boot_id, count(*) FROM samples JOIN nodes USING (node_id) GROUP BY 1 ORDER BY 1"
    )
    assert samples == [("boot1", 4), ("boot2", 2)]


def test_each_agent_run_resumes_at_its_last_frame(path: Path) -> None:
    later = [replace(frame, ts=frame.ts + 100) for frame in frames(1, 7, "life2")]
    leave(path, introduced(gpus=1), *frames(1, 5), introduced(gpus=1, life="life2"), *later, lost(3, "life3"))
    lives = go_on(path, introduced(gpus=1, life="life2")).lives
    assert {life.life: life.at for life in lives} == {"life1": T0 + 5, "life2": T0 + 107, "life3": None}


def lost(seq: int, life: str = "life1") -> FramesLost:
    return FramesLost("n1", T0 + 50, T0 + seq, life, seq, "it was killed")


def test_lost_frames_are_stored_and_the_next_has_no_interval(path: Path) -> None:
    leave(path, introduced(gpus=1), *frames(1, 2), lost(5))
    resumed = go_on(path, introduced(gpus=1), lost(5), *frames(6, 7), lost(4), lost(7))
    assert [(life.life, life.seq) for life in resumed.lives] == [("life1", 5)]
    assert query(path, "SELECT last_seq, frames, lost_frames FROM links") == [(7, 4, 3)]
    intervals = query(path, "SELECT seq, interval_ms FROM host_samples ORDER BY seq")
    assert intervals == [(1, None), (2, 1000), (6, None), (7, 1000)]


def test_resumed_sessions_keep_their_sums(path: Path) -> None:
    leave(
        path,
        introduced(gpus=1),
        SessionStarted("abc", T0, "train", T0),
        SessionStarted("def", T0, "whole", T0, note="lr 3e-4"),
        *frames(1, 4),
    )
    resumed = go_on(path, SessionChanged("1", T0 + 9, name="full"), introduced(gpus=1), *frames(5, 6))
    session = resumed.sessions[0]
    assert (session.session_id, session.name, session.started_at, session.running) == ("1", "train", T0, True)
    assert (session.mean_util, session.util_s, session.mean_power_w) == (50, 3, 100)
    assert session.covered_s == {"n1": 3}
    assert resumed.sessions[1].note == "lr 3e-4"
    summary = query(path, "SELECT session, samples FROM session_summary WHERE scope = 'all' ORDER BY 1")
    assert summary == [("full", 6), ("whole", 6)]


@pytest.mark.parametrize("undone", [True, False])
def test_crash_leaves_a_stopped_session_ended_unless_the_stop_was_undone(path: Path, undone: bool) -> None:
    stop = SessionStopped("s", T0 + 3, T0 + 3)
    leave(
        path,
        introduced(gpus=1),
        SessionStarted("s", T0 + 1, "train", T0 + 1),
        *frames(1, 3),
        stop,
        *([StopUndone("s", T0 + 3.5)] if undone else []),
        *frames(4, 6),
    )
    (session,) = go_on(path, ended_at=T0 + 10).sessions
    assert session.ended_at == (None if undone else T0 + 3)
    assert session.util_s == (5 if undone else 2)
    assert query(path, "SELECT status FROM sessions") == [("ended" if undone else "stopped",)]


def test_opening_a_file_lists_its_interrupted_recordings(path: Path) -> None:
    record(path, [introduced(gpus=1)])
    leave(path, introduced(gpus=1), *frames(1, 4), SessionStarted("a", T0, "train", T0))
    recorder = FileWriter(path, KNOWN, lambda _status: None)
    recorder.open()
    recorder.close(T0 + 5)
    (one,) = recorder.interrupted
    assert (one.recording_id, one.uid, one.started_at, one.last_at) == (2, UID, T0, T0 + 4)
    assert (one.nodes, one.sessions, dict(one.options)) == (("n1",), ("train",), {"launcher": "ssh"})
    go_on(path, number=2)
    with pytest.raises(StoreError, match="has no interrupted recording 2"):
        FileWriter(path, 2, lambda _status: None).open()


def test_nodes_that_may_hold_frames_are_listed_until_newer_samples_arrive(path: Path) -> None:
    def left() -> tuple[tuple[str, ...], tuple[str, ...] | None]:
        with closing(FileSource(path)) as file:
            (one,) = interrupted(file)
        return one.answered, one.awaited

    away = LinkChanged("n3", T0, Phase.LOST, "off")
    leave(path, introduced("n1", gpus=1), introduced("n2", gpus=1), away, *frames(1, 4))
    assert left() == (("n1", "n2"), None)
    go_on(path, EventLogged(T0 + 9, WAITING, WARNING, "it may hold frames", "n2"), ended_at=None)
    assert left() == (("n1", "n2"), ("n2",))
    go_on(path, introduced("n1", gpus=1), *frames(5, 10), ended_at=None)
    assert left() == (("n1", "n2"), None)


def ended(node: str, reason: str, at: float = T0 + 5) -> EventLogged:
    return EventLogged(at, "link_lost", ERROR, reason, node)


AGENTS: dict[str, tuple[Event, bool]] = {
    "its head was killed": (EventLogged(T0 + 4, "gap", WARNING, "3 frames are missing", "n1"), False),
    "the job ended": (ended("n2", JOB_ENDED), True),
    "it was ended by a signal": (ended("n3", f"{ENDED_BY}SIGTERM"), True),
    "it sent all frames": (ended("n4", SENT_ALL), True),
    "the job ended before the newest frame": (ended("n5", JOB_ENDED, T0 + 1), False),
    "it kept frames": (ended("n6", JOB_ENDED + FRAMES_REMAIN), False),
    "its frames are reported as lost": (agent_data_lost("n7", T0 + 4 - 0.25, T0), True),
}
"""What happened to the agent of each node, and whether the node then holds no frames."""


@pytest.fixture(scope="module")
def accounted(tmp_path_factory: pytest.TempPathFactory) -> frozenset[str]:
    """Return which nodes of a resumed recording hold no frames, for the agents of ``AGENTS``."""
    path = tmp_path_factory.mktemp("agents") / "run.duckdb"
    nodes = [f"n{number}" for number in range(1, 1 + len(AGENTS))]
    for_each = [left_by_agent(node) for node in nodes]
    leave(path, *(event for events in for_each for event in events), *(event for event, _ in AGENTS.values()))
    return go_on(path).accounted


def left_by_agent(node: str) -> list[Event]:
    return [introduced(node, gpus=1), LinkMeasured(node, T0, 0.25, 0.001), *frames(1, 4, node=node)]


@pytest.mark.parametrize("what", AGENTS)
def test_whether_a_node_may_hold_frames_depends_on_how_its_agent_ended(
    accounted: frozenset[str], what: str
) -> None:
    event, holds_none = AGENTS[what]
    assert isinstance(event, EventLogged)
    assert (event.node in accounted) is holds_none


def test_a_resumed_session_has_its_coverage_by_node(path: Path) -> None:
    record(
        path,
        [
            introduced("n1", gpus=1),
            introduced("n2", gpus=1),
            LinkChanged("n3", T0, Phase.LOST, "no such host"),
            SessionStarted("a", T0, "train", T0 + 2),
            *frames(1, 20),
            *frames(1, 7, node="n2"),
            *frames(13, 20, node="n2"),
            SessionStarted("b", T0, "short", T0 + 18),
        ],
        ended_at=T0 + 20.5,
    )
    found = query(
        path,
        "SELECT session, node, frames, covered_s, complete FROM session_coverage ORDER BY session_id, node",
    )
    assert found == [
        ("train", "n1", 18, 18, True),
        ("train", "n2", 13, 12, False),
        ("train", "n3", 0, 0, False),
        ("short", "n1", 2, 2, True),
        ("short", "n2", 2, 2, True),
        ("short", "n3", 0, 0, False),
    ]
    partial = query(path, "SELECT session, partial FROM session_summary WHERE scope = 'all' ORDER BY 1 DESC")
    assert partial == [("train", "partial: 1 of 3 nodes"), ("short", "partial: 2 of 3 nodes")]
