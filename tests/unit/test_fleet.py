"""The fleet: its nodes, sessions and totals, computed from events."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gswarm_agent.frame import ERROR, INFO, TABLES, WARNING, GpuFacts, Hello, HostFacts, Note, Row, Tables
from gswarm_agent.metrics import GPU_COLUMNS
from gswarm_tui.fleet.events import (
    FrameArrived,
    FramesLost,
    LinkChanged,
    NodeIntroduced,
    Phase,
    SessionChanged,
    SessionStarted,
    SessionStopped,
    StopUndone,
)
from gswarm_tui.fleet.node import Standing
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.fleet.totals import totals

T0 = 1_000_000.0


def gpu_row(**values: float) -> Row:
    return tuple(values.get(name) for name in GPU_COLUMNS)


def hello(gpus: int = 2, boot_id: str = "boot-1", life: str = "life-1") -> Hello:
    return Hello(
        agent_version="1",
        life=life,
        interval_ms=1000,
        simulated=False,
        host=HostFacts("gpu01", boot_id),
        gpus=tuple(
            GpuFacts(i, f"GPU-{i}", "NVIDIA H100", minor=i, memory_total_mib=80_000) for i in range(gpus)
        ),
        capabilities={},
    )


def frame(
    seq: int,
    ts: float,
    *rows: Row | None,
    notes: tuple[Note, ...] = (),
    life: str = "life-1",
    at: float | None = None,
    tables: Tables = TABLES,
) -> FrameArrived:
    made = tables.frame(seq, int(ts * 1e9), 0.0, 0, gpus=rows, host=None, notes=notes)
    return FrameArrived("gpu01", ts if at is None else at, ts, life, made)


def live(gpus: int = 2, fleet: Fleet | None = None) -> Fleet:
    fleet = fleet or Fleet(["gpu01"])
    fleet.apply(LinkChanged("gpu01", T0, Phase.LIVE))
    fleet.apply(NodeIntroduced("gpu01", T0, hello(gpus)))
    return fleet


def test_node_becomes_live_then_stale_then_lost() -> None:
    fleet = Fleet(["gpu01"])
    node = fleet.nodes["gpu01"]
    assert node.standing(T0) is Standing.CONNECTING
    live(fleet=fleet)
    fleet.apply(frame(1, T0 + 1, gpu_row(util_pct=5), gpu_row()))
    assert node.standing(T0 + 1) is Standing.LIVE
    assert node.standing(T0 + 4.0) is Standing.LIVE
    assert node.standing(T0 + 4.1) is Standing.STALE
    assert [h.kind for h in fleet.tick(T0 + 4.1)] == ["stale"]
    assert fleet.tick(T0 + 5) == []
    assert [h.kind for h in fleet.apply(frame(2, T0 + 6, None, None))] == ["fresh"]
    logged = fleet.apply(LinkChanged("gpu01", T0 + 7, Phase.LOST, "connection reset", "wait", T0 + 8))
    assert [(h.kind, h.severity, h.message) for h in logged] == [("link_lost", ERROR, "connection reset")]
    assert node.standing(T0 + 7) is Standing.LOST
    fleet.apply(LinkChanged("gpu01", T0 + 8, Phase.CONNECTING))
    assert (node.standing(T0 + 8), node.reason) == (Standing.CONNECTING, "connection reset")
    assert fleet.apply(LinkChanged("gpu01", T0 + 9, Phase.LOST, "connection reset", "wait", T0 + 11)) == []
    logged = fleet.apply(LinkChanged("gpu01", T0 + 12, Phase.LIVE))
    assert [h.message for h in logged] == ["connected again"]
    assert node.reason == ""


def test_node_that_never_answered_is_unreachable_and_not_lost() -> None:
    fleet = Fleet(["gpu01"])
    (logged,) = fleet.apply(LinkChanged("gpu01", T0, Phase.LOST, "no such host", "check --nodes"))
    assert (logged.kind, logged.severity, logged.message) == ("unreachable", ERROR, "no such host")
    assert fleet.nodes["gpu01"].standing(T0) is Standing.UNREACHABLE
    fleet.apply(LinkChanged("gpu01", T0 + 1, Phase.CONNECTING))
    live(fleet=fleet)
    (logged,) = fleet.apply(LinkChanged("gpu01", T0 + 2, Phase.LOST, "reset"))
    assert (logged.kind, fleet.nodes["gpu01"].standing(T0 + 2)) == ("link_lost", Standing.LOST)


def test_renamed_session_is_an_event_with_both_names() -> None:
    fleet = live()
    fleet.apply(SessionStarted("id", T0, "session-1", T0))
    (logged,) = fleet.apply(SessionChanged("id", T0 + 1, name="train"))
    assert (logged.kind, logged.message) == ("session_renamed", "session-1 is now train")
    assert fleet.apply(SessionChanged("id", T0 + 2, note="lr 3e-4")) == []
    assert fleet.apply(SessionChanged("id", T0 + 3, name="train")) == []
    (logged,) = fleet.apply(SessionStopped("id", T0 + 4, T0 + 4))
    assert (logged.kind, logged.message) == ("session_stopped", "train")


def test_missing_frames_are_logged_and_counted() -> None:
    fleet = live()
    fleet.apply(frame(1, T0 + 1, None, None))
    logged = fleet.apply(frame(5, T0 + 5, None, None))
    assert [(h.kind, h.message) for h in logged] == [("gap", "3 frames are missing")]
    assert fleet.nodes["gpu01"].lost_frames == 3


def test_new_agent_run_is_no_gap() -> None:
    fleet = live()
    fleet.apply(frame(1, T0 + 1, None, None))
    fleet.apply(NodeIntroduced("gpu01", T0 + 2, hello(life="life-2")))
    assert fleet.apply(frame(1, T0 + 3, None, None, life="life-2")) == []
    assert fleet.nodes["gpu01"].frames == 2


def test_duplicate_frames_after_a_reconnect_count_once() -> None:
    fleet = live(1)
    fleet.apply(SessionStarted("a", T0, "all", T0))
    frames = [frame(n, T0 + n, gpu_row(util_pct=n * 10, energy_mj=n * 1000)) for n in (1, 2, 3)]
    for one in [*frames, *frames[1:], frame(4, T0 + 4, gpu_row(util_pct=40, energy_mj=4000))]:
        assert fleet.apply(one) == []
    session = fleet.sessions.sessions["a"]
    assert (session.util_s, session.mean_util, session.energy_j) == (3, 30, 3)
    assert fleet.nodes["gpu01"].lost_frames == 0


def test_resumed_recording_counts_only_frames_that_never_arrived() -> None:
    fleet = live(1)
    fleet.restore_sequences([("gpu01", "life-1", 7, int(T0 * 1e9)), ("elsewhere", "x", 1, 0)])
    assert fleet.apply(frame(7, T0, None)) == []
    assert fleet.apply(frame(8, T0 + 1, None)) == []
    assert [h.message for h in fleet.apply(frame(10, T0 + 3, None))] == ["1 frame is missing"]


def interrupted_while_life_0_measured() -> Fleet:
    fleet = Fleet(["gpu01"])
    fleet.restore_sequences([("gpu01", "life-0", 7, int(T0 * 1e9))])
    fleet.note_interrupted_run("gpu01", "life-0", T0)
    return fleet


def test_lost_agent_run_is_logged_once() -> None:
    fleet = interrupted_while_life_0_measured()
    (gap,) = fleet.apply(NodeIntroduced("gpu01", T0 + 8, hello()))
    assert (gap.at, gap.kind, gap.severity, gap.message) == (
        T0,
        "gap",
        WARNING,
        "the agent's unsent frames are gone: samples that it took after this, if any, are lost",
    )
    assert fleet.apply(NodeIntroduced("gpu01", T0 + 9, hello(life="life-2"))) == []


def test_gap_reported_by_the_agent_is_logged_once() -> None:
    fleet = live(1)
    fleet.apply(frame(1, T0 + 1, None))
    lost = FramesLost("gpu01", T0 + 6, T0 + 5, "life-1", 5, "the spool of the node was full")
    (gap,) = fleet.apply(lost)
    assert (gap.at, gap.message) == (T0 + 5, "4 frames are missing: the spool of the node was full")
    assert fleet.apply(lost) == fleet.apply(frame(6, T0 + 6, None)) == []
    assert fleet.nodes["gpu01"].lost_frames == 4


def test_frames_that_the_head_received_are_not_lost() -> None:
    fleet = live(1)
    for n in (1, 2, 3):
        fleet.apply(frame(n, T0 + n, None))
    assert fleet.apply(FramesLost("gpu01", T0 + 9, T0 + 3, "life-1", 3, "it was killed")) == []
    (gap,) = fleet.apply(FramesLost("gpu01", T0 + 9, T0 + 3, "life-1", 4, "it was killed"))
    assert gap.message == "1 frame is missing: it was killed"
    (gap,) = fleet.apply(FramesLost("gpu01", T0 + 9, T0 + 3, "never heard", 1_200, "it was killed"))
    assert gap.message == "1,200 frames are missing: it was killed"


def test_spooled_frames_fill_the_history_but_the_node_stays_stale() -> None:
    fleet = live(1)
    fleet.apply(frame(1, T0 + 1, gpu_row(util_pct=1)))
    fleet.apply(LinkChanged("gpu01", T0 + 5, Phase.LOST, "cut"))
    node, back = fleet.nodes["gpu01"], T0 + 100
    assert [h.kind for h in fleet.tick(back)] == ["unhealthy"]
    fleet.apply(NodeIntroduced("gpu01", back, hello(1)))
    fleet.apply(LinkChanged("gpu01", back, Phase.LIVE))
    for n in range(2, 60):
        assert fleet.apply(frame(n, T0 + n, gpu_row(util_pct=n), at=back)) == []
    assert node.standing(back) is Standing.UNHEALTHY
    for n in range(60, 101):
        fleet.apply(frame(n, T0 + n, gpu_row(util_pct=n), at=back))
    assert node.standing(back) is Standing.LIVE
    assert [h.kind for h in fleet.event_log][-1] == "fresh"
    assert node.gpu_history is not None
    times, _ = node.gpu_history.series(0)
    assert times.tolist() == [T0 + n for n in range(1, 101)]


def test_frames_of_a_former_agent_run_are_shown_without_a_reboot() -> None:
    fleet = Fleet(["gpu01"])
    fleet.apply(NodeIntroduced("gpu01", T0 + 50, hello(1, "boot-0", "life-0"), former=True))
    fleet.apply(frame(1, T0, gpu_row(util_pct=30), life="life-0", at=T0 + 50))
    assert fleet.nodes["gpu01"].standing(T0 + 50) is Standing.CONNECTING
    fleet.apply(LinkChanged("gpu01", T0 + 50, Phase.LIVE))
    logged = fleet.apply(NodeIntroduced("gpu01", T0 + 50, hello(1, "boot-1")))
    assert [h.kind for h in logged] == ["reboot"]
    fleet.apply(frame(1, T0 + 50, gpu_row(util_pct=40)))
    for _ in range(2):  # the node is reached again: its agent passes on the same again
        assert fleet.apply(NodeIntroduced("gpu01", T0 + 60, hello(1, "boot-0", "life-0"), former=True)) == []
        assert fleet.apply(frame(1, T0, gpu_row(util_pct=30), life="life-0", at=T0 + 60)) == []
        assert fleet.apply(NodeIntroduced("gpu01", T0 + 60, hello(1, "boot-1"))) == []
    assert fleet.nodes["gpu01"].frames == 2


def test_late_frame_corrects_history_and_ended_sessions() -> None:
    fleet = live(1)
    fleet.apply(SessionStarted("early", T0, "early", T0))
    fleet.apply(frame(1, T0 + 1, gpu_row(util_pct=10, energy_mj=1_000_000), life="life-1"))
    fleet.apply(SessionStopped("early", T0 + 4, T0 + 4))
    fleet.apply(SessionStarted("after", T0 + 4, "after", T0 + 4))
    fleet.apply(NodeIntroduced("gpu01", T0 + 5, hello(1, life="life-2")))
    fleet.apply(frame(1, T0 + 5, gpu_row(util_pct=50, energy_mj=5_000_000), life="life-2"))
    early, after = fleet.sessions.sessions["early"], fleet.sessions.sessions["after"]
    assert (early.energy_j, after.energy_j) == (3000, 1000)
    assert fleet.apply(frame(2, T0 + 2, gpu_row(util_pct=20, energy_mj=2_000_000))) == []
    assert fleet.apply(frame(3, T0 + 3, gpu_row(util_pct=30, energy_mj=3_000_000))) == []
    assert (early.mean_util, after.mean_util) == (25, None)
    assert (early.energy_j, after.energy_j, fleet.energy_j) == (3000, 1000, 4000)
    node = fleet.nodes["gpu01"]
    assert node.gpus[0, GPU_COLUMNS.index("util_pct")] == 50
    assert node.gpu_history is not None
    times, values = node.gpu_history.series(GPU_COLUMNS.index("util_pct"), 0)
    assert (times - T0).tolist() == [1, 2, 3, 5]
    assert values.tolist() == [10, 20, 30, 50]


def test_session_whose_stop_was_undone_has_the_figures_of_one_that_never_stopped() -> None:
    fleet = live(1)
    for name in ("stopped", "never"):
        fleet.apply(SessionStarted(name, T0, name, T0))
    for n in range(1, 20):
        fleet.apply(frame(n, T0 + n, gpu_row(util_pct=n, power_w=10 * n, energy_mj=1_000_000 * n * n)))
        if n == 7:
            fleet.apply(SessionStopped("stopped", T0 + 7.5, T0 + 7.5))
        if n == 12:
            stopped = fleet.sessions.sessions["stopped"]
            assert stopped.mean_util == pytest.approx((27 + 8 * 0.5) / 6.5)
            assert not stopped.running
            logged = fleet.apply(StopUndone("stopped", T0 + 12.5))
            assert [(one.kind, one.message) for one in logged] == [("stop_undone", "stopped")]
            assert fleet.apply(StopUndone("stopped", T0 + 12.6)) == []
    stopped, never = fleet.sessions.sessions["stopped"], fleet.sessions.sessions["never"]
    assert stopped.running
    assert never.energy_j > 0
    assert replace(stopped, session_id="never", name="never") == never


def test_session_reports_partial_coverage() -> None:
    fleet = live(1, Fleet(["gpu01", "gpu02"]))
    fleet.apply(SessionStarted("a", T0, "all", T0))
    for n in range(1, 21):
        if not 5 < n < 10:
            fleet.apply(frame(n, T0 + n, gpu_row(util_pct=1)))
    session = fleet.sessions.sessions["a"]
    nodes = list(fleet.nodes)
    assert session.partial(nodes[:1], T0 + 5, 3) == ""
    assert session.partial(nodes, T0 + 5, 3) == "partial: 1 of 2 nodes"
    assert session.partial(nodes, T0 + 20, 3) == "partial: 0 of 2 nodes"
    assert session.partial(nodes, T0 + 20, 7) == "partial: 1 of 2 nodes"


def test_note_names_the_gpu_by_its_nvml_index() -> None:
    fleet = Fleet(["gpu01"])
    introduction = replace(hello(1), gpus=(GpuFacts(5, "GPU-5", "NVIDIA H100"),))
    fleet.apply(NodeIntroduced("gpu01", T0, introduction))
    logged = fleet.apply(frame(1, T0, gpu_row(), notes=(Note("xid", ERROR, "XID 79", 0),)))
    assert [(h.kind, h.node, h.gpu, h.message) for h in logged] == [("xid", "gpu01", 5, "XID 79")]


def test_mark_keeps_its_time() -> None:
    fleet = live(1)
    ahead_s = 100.0  # of the head's clock
    note = Note("mark", INFO, "epoch 3", ts_ns=round((T0 + ahead_s + 0.25) * 1e9), detail='{"loss": 1.2}')
    event = frame(1, T0 + ahead_s + 1, gpu_row(), notes=(note,))
    (logged,) = fleet.apply(replace(event, ts=T0 + 0.996, offset_s=ahead_s))
    assert (logged.kind, logged.node, logged.message, logged.detail) == (
        "mark",
        "gpu01",
        "epoch 3",
        '{"loss": 1.2}',
    )
    assert logged.at == pytest.approx(T0 + 0.25, abs=1e-6)


def test_sessions_overlap_and_count_only_their_own_time() -> None:
    fleet = live(1)
    fleet.apply(SessionStarted("a", T0, "all", T0))
    fleet.apply(frame(1, T0 + 1, gpu_row(util_pct=10, power_w=100, energy_mj=1_000_000)))
    fleet.apply(SessionStarted("b", T0 + 1.5, "later", T0 + 1.5))
    fleet.apply(frame(2, T0 + 2, gpu_row(util_pct=30, power_w=300, energy_mj=1_300_000)))
    fleet.apply(SessionStopped("b", T0 + 2.5, T0 + 2.5))
    fleet.apply(frame(3, T0 + 3, gpu_row(util_pct=50, power_w=200, energy_mj=1_500_000)))
    every, later = fleet.sessions.sessions["a"], fleet.sessions.sessions["b"]
    assert (every.mean_util, every.mean_power_w, every.energy_j) == (40, 250, 500)
    assert (later.mean_util, later.mean_power_w, later.energy_j) == (40, 250, 250)
    assert every.seconds(T0 + 9) == 9
    assert later.seconds(T0 + 9) == 1
    assert fleet.sessions.running == [every]


def test_session_ended_in_the_past_counts_only_its_time() -> None:
    fleet = live(1)
    for second in range(10):
        fleet.apply(
            frame(second + 1, T0 + second, gpu_row(util_pct=second * 10, energy_mj=1e12 + second * 700_000))
        )
    fleet.apply(SessionStarted("a", T0 + 9, "the middle", T0 + 3))
    logged = fleet.apply(SessionStopped("a", T0 + 9, T0 + 6))
    session = fleet.sessions.sessions["a"]
    assert (session.mean_util, session.util_s) == (50, 3)
    assert session.energy_j == pytest.approx(3 * 700, abs=1)
    assert session.covered_s == {"gpu01": pytest.approx(3)}
    assert [one.at for one in logged] == [T0 + 6], "when it happened"


def test_session_excludes_gpus_of_other_jobs() -> None:
    fleet = live(fleet=Fleet(["gpu01"], allocation={"gpu01": frozenset({1})}))
    for second in range(3):
        own = gpu_row(util_pct=20, power_w=100, energy_mj=second * 100_000)
        theirs = gpu_row(util_pct=90, power_w=700, energy_mj=second * 700_000)
        fleet.apply(frame(second + 1, T0 + second, theirs, own))
        if second == 0:
            fleet.apply(SessionStarted("a", T0 + 0.5, "from now on", T0 + 0.5))
    fleet.apply(SessionStarted("b", T0 + 2, "from the beginning", T0))
    for session in fleet.sessions.sessions.values():
        assert (session.mean_util, session.mean_power_w) == (20, 100)
        assert session.energy_j == (150 if session.name == "from now on" else 200)
    assert fleet.energy_j == 200


@pytest.mark.parametrize(
    ("minors", "instances", "granted", "own"),
    [
        ([0, 1, 2, 3], None, {1, 2}, [False, True, True, False]),
        ([0, None, 2, 3], None, {1, 2}, [False, True, True, False]),  # one was lost when the agent started
        ([4, 5], None, {0, 1}, [True, True]),  # inside the job's device cgroup
        ([0, 1, 2, 3], None, set[int](), [False] * 4),
        ([2, 3, 0, 1], None, {0, 1, 2, 3}, [True] * 4),
        ([2, 3, 0, 1], None, {0, 1}, None),  # as on nodes with AMD CPUs: issue 34 of jobstats
        ([0, 1, 2, 3], 2, {9}, None),
        ([0], 1, {9}, [True, True]),
        ([0], 2, {9}, None),
        ([0], 0, {9}, None),  # the driver doesn't list them
    ],
)
def test_only_gpus_that_are_certainly_the_jobs_count(
    minors: list[int | None], instances: int | None, granted: set[int], own: list[bool] | None
) -> None:
    facts = hello(gpus=len(minors))
    gpus = [replace(gpu, minor=minor) for gpu, minor in zip(facts.gpus, minors, strict=True)]
    if instances is not None:
        gpus[-1] = replace(gpus[-1], mig=True)
        gpus += [
            replace(gpus[-1], index=1000 + each, parent_index=gpus[-1].index) for each in range(instances)
        ]
    event = NodeIntroduced("gpu01", T0, replace(facts, gpus=tuple(gpus)))
    fleet = Fleet(["gpu01"], allocation={"gpu01": frozenset(granted)})
    logged = [one.kind for one in (*fleet.apply(event), *fleet.apply(event))]
    assert logged == ["allocation"] * (own is None)
    assert fleet.nodes["gpu01"].mine == tuple(own or [False] * len(gpus))


def test_totals_of_unmeasured_metrics_are_none() -> None:
    fleet = live()
    fleet.apply(frame(1, T0, gpu_row(mem_used_mib=100), None))
    sums = totals(fleet, T0)
    assert (sums.mean_util, sums.power_w, sums.memory_used_mib, sums.lowest_util) == (None, None, 100, None)


def test_totals_exclude_stale_nodes_and_gpus_of_other_jobs() -> None:
    fleet = live(fleet=Fleet(["gpu01", "gpu02"], allocation={"gpu01": frozenset({1})}))
    fleet.apply(frame(1, T0, gpu_row(util_pct=90, power_w=500), gpu_row(util_pct=10, power_w=100)))
    sums = totals(fleet, T0)
    assert (sums.nodes, sums.nodes_up, sums.gpus, sums.busy) == (2, 1, 1, 0)
    assert (sums.mean_util, sums.power_w, sums.lowest_util) == (10, 100, ("gpu01", 1))
    assert (sums.memory_total_mib, sums.energy_j) == (80_000, 0)
    late = totals(fleet, T0 + 60)
    assert (late.nodes_up, late.gpus, late.mean_util) == (0, 0, None)


@pytest.mark.parametrize("granted", [{0, 1}, {1}])
def test_frames_applied_at_once_equal_frames_applied_singly(granted: set[int]) -> None:
    """The frames include late ones, duplicates, those of another life, and those of a session."""
    frames = [
        frame(1, T0 + 1, gpu_row(energy_mj=1000, util_pct=5), gpu_row(energy_mj=10, clock_reasons=0x40)),
        frame(2, T0 + 2, gpu_row(energy_mj=3000, util_pct=7), None),
        frame(2, T0 + 2, gpu_row(energy_mj=9000), None),
        frame(5, T0 + 5, None, gpu_row(energy_mj=5000), notes=(Note("xid", ERROR, "XID 79", 0),)),
        frame(6, T0 + 4, gpu_row(energy_mj=7000, power_w=100), gpu_row(energy_mj=4000)),
        frame(1, T0 + 6, gpu_row(energy_mj=8000), gpu_row(energy_mj=100), life="life-2"),
    ]
    frames += [
        frame(seq, T0 + 5 + seq, gpu_row(power_w=seq / 10), gpu_row(energy_mj=seq * 1000), life="life-2")
        for seq in range(2, 200)
    ]
    one_by_one, at_once = (
        live(fleet=Fleet(["gpu01"], allocation={"gpu01": frozenset(granted)})) for _ in range(2)
    )
    for fleet in (one_by_one, at_once):
        fleet.apply(SessionStarted("s", T0, "s", T0))
    logged = [event for one in frames for event in one_by_one.apply(one)]
    assert at_once.apply_frames(frames) == logged
    assert {event.kind for event in logged} == {"gap", "xid"}
    one, other = one_by_one.nodes["gpu01"], at_once.nodes["gpu01"]
    np.testing.assert_array_equal(one.gpus, other.gpus)
    assert (one.frames, one.lost_frames, one.last_ts) == (other.frames, other.lost_frames, other.last_ts)
    assert one_by_one.energy_j == at_once.energy_j > 0
    assert one_by_one.sessions.sessions == at_once.sessions.sessions
    assert one.gpu_history is not None
    assert other.gpu_history is not None
    for mine, others in zip(one.gpu_history.tables(), other.gpu_history.tables(), strict=True):
        np.testing.assert_array_equal(mine, others)


def test_session_counts_nodes_of_which_the_job_has_as_many_gpus_but_not_all() -> None:
    fleet = live(4, Fleet(["gpu01", "gpu02"], allocation={"gpu01": frozenset({1, 2})}))
    fleet.apply(NodeIntroduced("gpu02", T0, hello(2)))
    fleet.apply(SessionStarted("1", T0, "train", T0))
    for seq in (1, 2):
        rows = [gpu_row(util_pct=50, power_w=100)] * 4
        one, other = frame(seq, T0 + seq, *rows), replace(frame(seq, T0 + seq, *rows[:2]), node="gpu02")
        fleet.apply_frames([one, other])
    session = fleet.sessions.sessions["1"]
    assert (session.mean_util, session.energy_j) == (50, 400)


def test_log_keeps_the_newest_events_with_messages_of_limited_length() -> None:
    fleet = live()
    notes = tuple(Note("xid", ERROR, f"{n} " + "x" * 4000) for n in range(1000))
    for seq in range(1, 21):
        fleet.apply(frame(seq, T0 + seq, gpu_row(), gpu_row(), notes=notes))
    messages = [event.message for event in fleet.event_log]
    assert messages[-1].startswith("999 ")
    assert max(map(len, messages)) == 500
    assert 5000 <= len(messages) <= 5500
