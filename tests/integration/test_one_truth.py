"""The same figures everywhere: by time, with silent GPUs, and without implausible values."""

from __future__ import annotations

import json
import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gswarm_agent.frame import INFO, ProcessSample
from gswarm_agent.metrics import GPU_COLUMNS, PROCESS_COLUMNS
from gswarm_tui.analysis import periods
from gswarm_tui.analysis.comparison import ComparedRun, comparison_notes, comparison_table
from gswarm_tui.analysis.summary_data import Summary, summarize
from gswarm_tui.analysis.summary_text import heading, summary_lines
from gswarm_tui.cli import main
from gswarm_tui.fleet.events import (
    Event,
    EventLogged,
    FrameArrived,
    LinkChanged,
    Phase,
    SessionStarted,
    SessionStopped,
)
from gswarm_tui.fleet.history import Floats
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.playback.recorded_source import RecordedSource
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.sql.recipes import RECIPES
from tests.block_rows import rows_of
from tests.integration.summary_oracle import Sample, share
from tests.unit.store_recording import T0, arrived, gpu_row, introduced, process_row, query, record


def summary_of(path: Path) -> Summary:
    with closing(FileSource(path)) as source:
        return summarize(source, periods.find_period(source, "s"))


def session(began: float, until: float) -> list[Event]:
    return [SessionStarted("s", T0 + until, "s", T0 + began), SessionStopped("s", T0 + until, T0 + until)]


def sampled_quicker_while_busy() -> list[Event]:
    """Return 10 s at 0.1 s, all busy, then 40 s at 10 s and 10 s at 1 s, mostly idle."""
    events: list[Event] = [introduced(gpus=1)]
    seq, ts = 1, T0
    events.append(arrived(1, [gpu_row(util_pct=90, power_w=600, energy_mj=0)], ts=T0))
    for every_s, frames, util in ((0.1, 100, 90), (10.0, 4, 5), (1.0, 10, 20)):
        for _ in range(frames):
            seq, ts = seq + 1, round(ts + every_s, 1)
            row = gpu_row(util_pct=util, power_w=6 * util + 0.04, energy_mj=round((ts - T0) * 200_000))
            events.append(arrived(seq, [row], ts=ts))
    return events


def test_means_go_by_time_after_the_interval_changed(tmp_path: Path) -> None:
    events = [*sampled_quicker_while_busy(), *session(0, 60)]
    record(tmp_path / "run.duckdb", events)
    whole = summary_of(tmp_path / "run.duckdb").whole
    assert whole is not None
    assert whole.util_mean_pct == pytest.approx((90 * 10 + 5 * 40 + 20 * 10) / 60)
    assert (whole.util_median_pct, whole.util_p95_pct) == (5, 90)
    assert whole.power_mean_w == pytest.approx(6 * (90 * 10 + 5 * 40 + 20 * 10) / 60)
    assert (whole.busy_s, whole.idle_s, whole.energy_j) == (20, 40, 12_000)
    assert query(tmp_path / "run.duckdb", "SELECT covered_s, complete FROM session_coverage") == [(60, True)]
    fleet = Fleet(["n1"])
    for event in events:
        fleet.apply(event)
    live = fleet.sessions.sessions["s"]
    assert live.mean_util == pytest.approx(whole.util_mean_pct)
    assert live.mean_power_w == pytest.approx(whole.power_mean_w)
    assert live.energy_j == pytest.approx(whole.energy_j)


def test_views_exports_and_recipes_weigh_by_time_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    frames = [one for one in sampled_quicker_while_busy() if isinstance(one, FrameArrived)]
    seen = ProcessSample(0, 11, "ada", "train.py", 0, 0, process_row(sm_pct=0))
    events: list[Event] = [introduced(gpus=1)]
    for one in frames:
        util = rows_of(one.frame.gpus)[0][GPU_COLUMNS.index("util_pct")]
        process = replace(seen, row=process_row(sm_pct=util))
        events.append(arrived(one.frame.seq, rows_of(one.frame.gpus), ts=one.ts, processes=(process,)))
    mark = EventLogged(T0 + 60, "mark", INFO, "step 1", "n1", detail='{"rank": 0}')
    first = EventLogged(T0, "mark", INFO, "step 0", "n1", detail='{"rank": 0}')
    within_an_interval: list[Event] = [
        SessionStarted("t", T0 + 14, "t", T0 + 13),
        SessionStopped("t", T0 + 14, T0 + 14),
    ]
    record(tmp_path / "run.duckdb", [*events, first, mark, *session(0, 60), *within_an_interval])
    mean = pytest.approx((90 * 10 + 5 * 40 + 20 * 10) / 60)
    for figure, view in (("sm_mean_pct", "session_processes"), ("util_mean_pct", "session_summary")):
        where = "WHERE gpu_index = 0 ORDER BY session_id"
        assert query(Path("run.duckdb"), f"SELECT {figure} FROM {view} {where}") == [(mean,), (5,)]
    figures = "util_mean_pct, energy_j, busy_s, coverage"
    rows = query(Path("run.duckdb"), f"SELECT mark, {figures} FROM mark_intervals")
    assert rows == [
        (
            "step 1",
            *query(Path("run.duckdb"), f"SELECT {figures} FROM session_summary WHERE scope = 'all'")[0],
        )
    ]
    assert rows[0][1] == mean
    assert main(["export", "s", "-o", "s.json"]) == 0
    (device,) = json.loads(Path("s.json").read_text())["summary_by_device"].values()
    assert device["avg_gpu_util"] == pytest.approx(1300 / 60, abs=1e-4)


def test_exports_of_a_session_give_the_figures_of_its_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record(Path("run.duckdb"), [*sampled_quicker_while_busy(), *session(8.05, 44)])
    whole = summary_of(Path("run.duckdb")).whole
    assert whole is not None
    assert whole.util_mean_pct == pytest.approx((90 * 1.95 + 5 * 34) / 35.95)
    assert main(["export", "s", "-o", "s.json"]) == 0
    (device,) = json.loads(Path("s.json").read_text())["summary_by_device"].values()
    assert device["avg_gpu_util"] == pytest.approx(whole.util_mean_pct, abs=1e-4)
    assert main(["export", "s", "--format", "parquet"]) == 0
    assert main(["import", "s.parquet", "--db", "again.duckdb"]) == 0
    assert summary_of(Path("again.duckdb")).whole == whole


def test_time_of_a_stopped_agent_is_unmeasured_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that samples every 0.2 s is stopped for 12 of 20 s; its energy counter goes on.

    A GPU without a counter used its power only while it was measured.
    """
    monkeypatch.chdir(tmp_path)
    events: list[Event] = [introduced(gpus=2), SessionStarted("s", T0, "s", T0)]
    for seq, at in enumerate([*range(25), *range(84, 101)], 1):
        ts = T0 + at / 5
        counted = gpu_row(util_pct=100, power_w=300, energy_mj=at * 60_000)
        events.append(arrived(seq, [counted, gpu_row(util_pct=0, power_w=100)], ts=ts, gauge_ms=300))
    events.append(SessionStopped("s", T0 + 20, T0 + 20))
    record(tmp_path / "run.duckdb", events)
    covered = 24 * 0.2 + 0.3 + 16 * 0.2
    whole = summary_of(tmp_path / "run.duckdb").whole
    assert whole is not None
    assert whole.busy_s == whole.idle_s == pytest.approx(covered)
    assert whole.coverage == pytest.approx(covered / 20)
    assert whole.energy_j == pytest.approx(20 * 300 + covered * 100)
    coverage = query(tmp_path / "run.duckdb", "SELECT covered_s, complete FROM session_coverage")
    assert coverage == [(pytest.approx(covered), False)]
    live = Fleet(["n1"])
    for event in events:
        live.apply(event)
    with closing(FileSource(tmp_path / "run.duckdb")) as source:
        replay = RecordedSource(source, 1)
        for fleet in (live, replay.fleet(T0 + 20)):
            (one,) = fleet.sessions.sessions.values()
            assert one.covered_s["n1"] == pytest.approx(covered)
            assert one.util_s == pytest.approx(2 * covered)
            assert one.energy_j == pytest.approx(whole.energy_j)
        played = Fleet(["n1"])
        for event in replay.events(T0 - 1, T0 + 20):
            played.apply(event)
        assert played.sessions.sessions["1"].covered_s["n1"] == pytest.approx(covered)
    assert main(["export", "s", "-o", "s.json"]) == 0
    assert max(frame["interval_ms"][0] for frame in json.loads(Path("s.json").read_text())["frames"]) == 300


def test_session_of_no_length_has_no_coverage(tmp_path: Path) -> None:
    frames = [arrived(i, [gpu_row(util_pct=10)]) for i in range(1, 4)]
    record(tmp_path / "run.duckdb", [introduced(gpus=1), *frames, *session(2, 2)])
    found = "SELECT coverage FROM session_summary UNION ALL SELECT coverage FROM session_coverage"
    assert set(query(tmp_path / "run.duckdb", found)) == {(None,)}


def test_session_within_a_long_interval_counts_its_part(tmp_path: Path) -> None:
    frames = [arrived(i, [gpu_row(util_pct=10, energy_mj=i * 1_000_000)], ts=T0 + 10 * i) for i in range(5)]
    frames = [arrived(i + 1, rows_of(one.frame.gpus), ts=one.ts) for i, one in enumerate(frames)]
    record(tmp_path / "run.duckdb", [introduced(gpus=1), *frames, *session(23, 23.5)])
    whole = summary_of(tmp_path / "run.duckdb").whole
    assert whole is not None
    assert (whole.idle_s, whole.energy_j, whole.coverage) == (0.5, 50, 1)


def test_throttling_that_a_driver_counts_late_is_clipped_on_screens_only(tmp_path: Path) -> None:
    rates = [None, 0, 0, 250, 0]
    frames = [arrived(i, [gpu_row(util_pct=9, throttle_power_pct=rate)]) for i, rate in enumerate(rates, 1)]
    record(tmp_path / "run.duckdb", [introduced(gpus=1), *frames, *session(0, 5)])
    whole = summary_of(tmp_path / "run.duckdb").whole
    assert whole is not None
    assert whole.throttle_power_s == 2.5
    fleet = Fleet(["n1"])
    fleet.apply(introduced(gpus=1))
    fleet.apply_frames(frames[:4])
    assert fleet.nodes["n1"].gpus[0, GPU_COLUMNS.index("throttle_power_pct")] == 100


def test_silent_gpus_and_nodes_count_and_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    row = gpu_row(util_pct=80, power_w=500)
    frames = [arrived(i, [row, row if i < 5 else None]) for i in range(1, 21)]
    gone = [arrived(i, [row], node="n2") for i in range(1, 5)]
    never = LinkChanged("n3", T0, Phase.LOST, "no such host")
    events = [introduced(), introduced("n2", gpus=1), never, *frames, *gone, *session(10, 20)]
    record(tmp_path / "run.duckdb", events)
    summary = summary_of(tmp_path / "run.duckdb")
    assert summary.whole is not None
    assert summary.whole.gpus == 3
    assert summary.whole.coverage == pytest.approx(1 / 3)
    assert summary.silent == ("n2", "n3", "n1:1")
    assert "3 nodes · 3 GPUs" in heading(summary)
    assert ("silent", "n[2-3],n1:1: no samples in this time") in summary_lines(summary)
    run = ComparedRun("s", "run.duckdb", summary, summary.whole, {}, "run")
    assert {("nodes", "3"), ("GPUs", "3")} <= set(comparison_table([run]).rows)
    assert "s has no samples of n[2-3],n1:1." in comparison_notes([run])
    assert main(["report", "-o", "s.html"]) == 0
    assert "No samples in this time: n[2-3],n1:1." in (tmp_path / "s.html").read_text()


def test_summary_equals_a_recomputation_from_the_samples(tmp_path: Path) -> None:
    """The recording has changing intervals, gaps, missing values, counter resets and a cut session."""
    random, path = np.random.default_rng(7), tmp_path / "run.duckdb"
    events: list[Event] = [introduced(gpus=2)]
    seq, ts, counter = 0, T0, np.array([5_000_000.0, 9_000_000.0])
    for _ in range(400):
        step = float(random.choice([0.1, 0.5, 1, 1, 5]))
        seq, ts = seq + int(random.choice([1, 1, 1, 1, 3])), round(ts + step, 1)
        counter = counter * (random.random() > 0.02) + random.integers(0, 700_000, 2)
        rows = [
            gpu_row(
                util_pct=None if random.random() < 0.1 else int(random.integers(0, 101)),
                power_w=None if random.random() < 0.1 else int(random.integers(60, 700)),
                energy_mj=None if random.random() < 0.2 else int(mj),
            )
            for mj in counter
        ]
        events.append(arrived(seq, rows, ts=ts))
    began, until = T0 + 40.25, ts - 30.37
    record(path, [*events, *session(began - T0, until - T0)], ended_at=ts + 1)
    columns = ["gpu_id", "util_pct", "power_w", "interval_ms", "energy_used_mj", "energy_used_ms"]
    listed = ", ".join(f"coalesce({name}, 'nan'::DOUBLE)" for name in columns)
    found = np.array(query(path, f"SELECT epoch(ts), {listed} FROM gpu_samples"), dtype=float)
    at, gpu, util, power, interval_ms, *_ = found.T

    def inside(covers_ms: Floats) -> Floats:
        start = np.maximum(at - np.nan_to_num(covers_ms) / 1000, began)
        parts: Floats = np.maximum(0.0, np.minimum(at, until) - start)
        return parts

    seconds, whole = inside(interval_ms), summary_of(path).whole
    assert whole is not None
    known, powered = np.isfinite(util), np.isfinite(power)
    assert whole.util_mean_pct == pytest.approx(np.average(util[known], weights=seconds[known]))
    assert whole.power_mean_w == pytest.approx(np.average(power[powered], weights=seconds[powered]))
    order = np.argsort(util[known])
    reached = np.cumsum(seconds[known][order]) / seconds[known].sum()
    assert whole.util_median_pct == util[known][order][np.searchsorted(reached, 0.5)]
    assert whole.util_p95_pct == util[known][order][np.searchsorted(reached, 0.95)]
    assert whole.busy_s == pytest.approx(seconds[known & (util >= 20)].sum())
    assert whole.coverage == pytest.approx(seconds.sum() / (2 * (until - began)), rel=1e-6)
    used_j = 0.0
    for gpu_id in (1, 2):
        own = found[gpu == gpu_id].tolist()
        samples = [Sample(t, ms / 1000, None, w) for t, _, _, w, ms, *_ in own if w == w and ms == ms]
        steps = [(mj, t, ms / 1000) for t, *_, mj, ms in own if ms > 0]
        used_j += sum(mj * share(samples, t, covers_s, began, until) for mj, t, covers_s in steps) / 1000
    assert whole.energy_j == pytest.approx(used_j, abs=0.1)


def test_recipe_compares_sessions_only_if_none_overlaps(tmp_path: Path) -> None:
    frames = [one for one in sampled_quicker_while_busy() if isinstance(one, FrameArrived)]
    (recipe,) = (one for one in RECIPES if one.title.startswith("Each session compared"))
    first: list[Event] = [
        SessionStarted("first", T0 + 20, "first", T0),
        SessionStopped("first", T0 + 20, T0 + 20),
    ]
    second: list[Event] = [
        SessionStarted("second", T0 + 60, "second", T0 + 20),
        SessionStopped("second", T0 + 60, T0 + 60),
    ]
    record(tmp_path / "apart.duckdb", [introduced(gpus=1), *frames, *first, *second])
    rows = query(tmp_path / "apart.duckdb", recipe.sql)
    assert [row[:5] for row in rows] == [("first", 1, 20, 1, 1), ("second", 1, 40, 0.5, 0.5)]
    around: list[Event] = [
        SessionStarted("around", T0 + 60, "around", T0 + 10),
        SessionStopped("around", T0 + 60, T0 + 60),
    ]
    record(tmp_path / "overlap.duckdb", [introduced(gpus=1), *frames, *first, *around])
    assert query(tmp_path / "overlap.duckdb", recipe.sql) == []


def test_implausible_values_are_left_out_of_screens_and_recordings_alike(tmp_path: Path) -> None:
    row = gpu_row(util_pct=101, mem_util_pct=255, temp_c=-3, mem_used_mib=-1)
    process = ProcessSample(0, 7, "ada", "train", 0, 0, process_row(sm_pct=255, cpu_pct=1600))
    events: list[Event] = [introduced(gpus=1), arrived(1, [row], processes=(process,))]
    record(tmp_path / "run.duckdb", events)
    fleet = Fleet(["n1"])
    for event in events:
        fleet.apply(event)
    node = fleet.nodes["n1"]
    assert node.gpus is not None
    names = ("util_pct", "mem_util_pct", "temp_c", "mem_used_mib")
    shown = [node.gpus[0, GPU_COLUMNS.index(name)] for name in names]
    assert [None if math.isnan(one) else one for one in shown] == [None, None, -3, None]
    (listed,) = node.processes
    of_process = [listed.row[PROCESS_COLUMNS.index(name)] for name in ("sm_pct", "cpu_pct")]
    path = tmp_path / "run.duckdb"
    assert query(path, f"SELECT {', '.join(names)} FROM samples") == [(None, None, -3, None)]
    assert [tuple(of_process)] == query(path, "SELECT sm_pct, process_cpu_pct FROM processes")
