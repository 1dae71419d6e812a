"""Summaries in SQL against sums in plain Python, on recordings made by the recorder."""

from __future__ import annotations

import tempfile
from contextlib import closing
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gswarm_agent.frame import ProcessSample
from gswarm_tui.analysis import periods, session_list, summary_text
from gswarm_tui.analysis.summary_data import Figures, Summary, processes, summarize
from gswarm_tui.fleet.events import Event, SessionStarted, SessionStopped
from gswarm_tui.store.querying.file_source import FileSource
from tests.bench.day import BEGAN as DAY_BEGAN
from tests.bench.day import Size, make
from tests.integration.summary_oracle import ExpectedSums, Sample, inside, quantile, sum_up
from tests.unit.store_recording import T0, arrived, gpu_row, host_row, introduced, process_row, query, record

BEGAN, UNTIL = T0 + 4, T0 + 16


def session(name: str = "train", began: float = BEGAN, until: float = UNTIL) -> list[Event]:
    return [SessionStarted(name, until, name, began), SessionStopped(name, until, until)]


def summary_of(path: Path, name: str = "") -> Summary:
    with closing(FileSource(path)) as source:
        return summarize(source, periods.find_period(source, name))


_SERIES = st.lists(
    st.tuples(
        st.integers(1, 3),  # how much higher the next frame's number is: with 1 there is no gap before it
        st.one_of(st.none(), st.integers(0, 100)),
        st.one_of(st.none(), st.integers(0, 5_000)),
        st.sampled_from([True, True, True, False]),  # whether the GPU answered
    ),
    min_size=1,
    max_size=16,
)


def played(node: str, series: Any) -> tuple[list[Event], list[Sample]]:
    """Return the events of a node with one GPU, and its expected samples."""
    events: list[Event] = [introduced(node, gpus=1)]
    samples, seq = [], 0
    for ahead, util, counted, answered in series:
        interval = 1.0 if seq and ahead == 1 else None
        seq += ahead
        power = None if util is None else util * 7.0
        row = gpu_row(util_pct=util, power_w=power, energy_mj=counted, pstate=0) if answered else None
        events.append(arrived(seq, [row], node=node))
        if answered:
            samples.append(Sample(T0 + seq, interval, util, power, counted))
    return events, samples


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_SERIES, min_size=1, max_size=12))
def test_summaries_equal_the_oracle(all_series: list[Any]) -> None:
    """The recordings have gaps, counters that restart, and missing values and GPUs."""
    events, samples = session(), {}
    for number, series in enumerate(all_series):
        of_node, samples[f"n{number}"] = played(f"n{number}", series)
        events += of_node
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.duckdb"
        record(path, events)
        summary = summary_of(path)
        lengths = query(path, "SELECT node, duration_s FROM session_bubbles ORDER BY ALL")
    expected = {node: sum_up(each, BEGAN, UNTIL) for node, each in samples.items()}
    assert {one.node for one in summary.gpus} == expected.keys()
    for one in summary.gpus:
        check(one, expected[one.node or ""])
    assert lengths == sorted((node, s) for node, one in expected.items() for s in one.bubbles)
    if summary.whole is not None:
        check_whole(summary.whole, list(expected.values()), [s for each in samples.values() for s in each])


def check(one: Figures, truth: ExpectedSums) -> None:
    for field in fields(ExpectedSums):
        if field.name != "bubbles":
            expected = pytest.approx(getattr(truth, field.name), rel=1e-6, abs=0.002)
            assert getattr(one, field.name) == expected, field.name
    if truth.busy_s is None:
        assert (one.bubbles, one.bubble_s, one.bubble_share) == (None, None, None)
        return
    assert (one.bubbles, one.bubble_s) == (len(truth.bubbles), sum(truth.bubbles))
    assert one.bubble_longest_s == (max(truth.bubbles) if truth.bubbles else None)
    between = sum(truth.bubbles) + truth.busy_s
    assert one.bubble_share == (pytest.approx(sum(truth.bubbles) / between) if between else None)


def check_whole(whole: Figures, gpus: list[ExpectedSums], samples: list[Sample]) -> None:
    weighted = inside(samples, BEGAN, UNTIL)
    util = [(one.util_pct, seconds) for one, seconds in weighted if one.util_pct is not None]
    assert whole.samples == len(weighted)
    assert whole.util_median_pct == quantile(util, 0.5)
    assert whole.util_p95_pct == quantile(util, 0.95)
    energy = [one.energy_j for one in gpus if one.energy_j is not None]
    assert whole.energy_j == (pytest.approx(sum(energy), abs=0.02) if energy else None)
    if any(seconds for _, seconds in util):
        assert whole.bubbles == sum(len(one.bubbles) for one in gpus)
        assert whole.busy_s == sum(one.busy_s or 0 for one in gpus)


def test_summaries_of_many_samples_equal_the_oracle(tmp_path: Path) -> None:
    """The recording has several row groups, which threads read in parallel."""
    made, path, size = tmp_path / "made.duckdb", tmp_path / "run.duckdb", Size(2, gpus=1, seconds=6_500)
    make(made, size)
    with duckdb.connect() as connection:
        connection.execute(f"ATTACH '{made}' AS made (READ_ONLY)")
        connection.execute(f"ATTACH '{path}' AS run (ROW_GROUP_SIZE 2048)")
        connection.execute("COPY FROM DATABASE made TO run")
    with duckdb.connect(str(path)) as connection:
        groups = "SELECT count(DISTINCT row_group_id) > 5 FROM pragma_storage_info('gpu_samples')"
        assert connection.execute(groups).fetchall() == [(True,)]
        rows = connection.execute(
            "SELECT gpu_id, epoch(ts), interval_ms / 1000, util_pct, power_w, energy_mj FROM gpu_samples"
        ).fetchall()
    samples: dict[int, list[Sample]] = {}
    for gpu_id, *values in rows:
        samples.setdefault(gpu_id, []).append(Sample(*values))
    summary = summary_of(path, "day")
    assert len(summary.gpus) == 2
    for number, one in enumerate(summary.gpus, 1):
        check(one, sum_up(samples[number], DAY_BEGAN, DAY_BEGAN + size.seconds))


def test_a_rebooted_node_is_summarised_as_one_node(tmp_path: Path) -> None:
    busy, idle = gpu_row(util_pct=90, energy_mj=5_000), gpu_row(util_pct=0, energy_mj=1_000)
    path = tmp_path / "run.duckdb"
    events = [
        introduced(),
        *(arrived(i, [busy, busy]) for i in (1, 2, 3)),
        introduced(at=T0 + 8, life="life2", boot_id="boot2"),
        *(arrived(i, [idle, busy], life="life2", ts=T0 + 8 + i) for i in (1, 2)),
        arrived(3, [replace_energy(busy, 9_000)] * 2, life="life2", ts=T0 + 11),
        *session(began=T0, until=T0 + 11),
    ]
    record(path, events)
    assert query(path, "SELECT count(*) FROM nodes") == [(2,)]
    summary = summary_of(path)
    whole = summary.whole
    assert whole is not None
    assert [one.label for one in (*summary.nodes, *summary.gpus)] == ["n1", "n1:0", "n1:1"]
    assert (whole.gpus, whole.samples, [one.node for one in summary.covered]) == (2, 12, ["n1"])
    # While it booted it was not measured, which is no idle time; the one measured second is.
    assert (summary.gpus[0].bubbles, summary.gpus[0].bubble_s) == (1, 1.0)
    assert summary.gpus[0].energy_j == pytest.approx(8.0)  # a counter that fell tells nothing of the boot
    assert summary.partial == ("n1",)


def replace_energy(row: Any, energy_mj: int) -> Any:
    return gpu_row(util_pct=row[0], energy_mj=energy_mj)


def test_summary_energy_follows_restarts_and_gaps(tmp_path: Path) -> None:
    """The counter restarts within a minute and between two; one sample lacks it; there is a gap."""
    path = tmp_path / "run.duckdb"
    counted = {1: 500, 4: 600, 30: 5_000, 50: 100, 59: 200, 61: 300, 119: 4_000, 121: 50, 150: None, 170: 70}
    frames = [arrived(i, [gpu_row(energy_mj=mj), None]) for i, mj in counted.items()]
    frames += [arrived(i, [None, gpu_row(energy_mj=i * 10)], node="n2") for i in range(1, 180)]
    sessions = [*session("a", T0 + 4, T0 + 171), *session("b", T0 + 30, T0 + 60), *session("c", T0, T0 + 1)]
    record(path, [introduced(), introduced("n2"), *frames, *sessions], ended_at=T0 + 200)
    whole = dict(query(path, "SELECT session_id, energy_j FROM session_summary WHERE scope = 'all'"))
    assert whole[1] == pytest.approx((4_400 + 100 + 100 + 3_700 + 20 + 1_670) / 1000)
    assert whole.get(3) is None


def test_summaries_have_peaks_of_gpus_and_hosts(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    host = {"n1": (20, 30_000), "n2": (60, 90_000)}
    events: list[Event] = [*session()]
    for node, (cpu, memory) in host.items():
        events.append(introduced(node))
        for i in range(1, 20):
            value = (80 if node == "n2" else 50) + (i - 1 if 4 < i <= 16 else 100)
            rows = [
                gpu_row(
                    util_pct=50, power_w=value, mem_used_mib=value * 10, temp_c=value // 2, mem_temp_c=70
                ),
                gpu_row(util_pct=60, power_w=20, mem_used_mib=5, temp_c=30, mem_temp_c=71),
            ]
            events.append(arrived(i, rows, node=node, host=host_row(cpu_pct=cpu, memory_used_mib=memory)))
    record(path, events)
    summary = summary_of(path)
    whole, second = summary.whole, summary.nodes[1]
    assert whole is not None
    names = ("power_max_w", "mem_used_max_mib", "mem_total_mib", "temp_max_c", "mem_temp_max_c")
    assert [getattr(whole, name) for name in names] == [95, 950, 81_559, 47, 71]
    assert [getattr(summary.nodes[0], name) for name in names] == [65, 650, 81_559, 32, 71]
    assert [getattr(summary.gpus[3], name) for name in names] == [20, 5, 81_559, 30, 71]
    hosts = ("host_cpu_max_pct", "host_memory_max_mib", "host_memory_total_mib")
    assert [getattr(whole, name) for name in hosts] == [60, 90_000, 515_000]
    assert [getattr(second, name) for name in hosts] == [60, 90_000, 515_000]
    assert [getattr(summary.gpus[0], name) for name in hosts] == [None, None, None]


def test_summaries_have_what_chips_did_beside_their_utilisation(tmp_path: Path) -> None:
    path, old = tmp_path / "run.duckdb", tmp_path / "old.duckdb"
    # The second GPU is measured in every other sample, so it counts half as much in means of both.
    lazy = gpu_row(util_pct=100, sm_active_pct=12, tensor_active_pct=3, dram_active_pct=5, sm_clock_mhz=990)
    busy = gpu_row(util_pct=100, sm_active_pct=90, tensor_active_pct=60, sm_clock_mhz=1980)
    blind = gpu_row(util_pct=100, sm_clock_mhz=1980)
    frames = [arrived(i, [lazy, busy if i % 2 else blind]) for i in range(1, 20)]
    record(path, [*session(), introduced(), *frames])
    record(old, [*session(), introduced(), *(arrived(i, [blind, blind]) for i in range(1, 20))])
    summary, unmeasured = summary_of(path), summary_of(old)
    names = ("sm_active_mean_pct", "tensor_active_mean_pct", "dram_active_mean_pct", "of_peak")
    assert [getattr(summary.gpus[0], name) for name in names] == [12, 3, 5, pytest.approx(0.015)]
    assert [getattr(summary.gpus[1], name) for name in names] == [90, 60, None, pytest.approx(0.6)]
    whole = [(2 * 12 + 90) / 3, (2 * 3 + 60) / 3, 5, (2 * 0.015 + 0.6) / 3]
    assert [getattr(summary.whole, name) for name in names] == pytest.approx(whole)
    said = "SM 38 %, tensor 22 % (use of peak, about 21 %), DRAM 5 %"
    assert dict(summary_text.summary_lines(summary))["active"] == said
    table = summary_text.figures_table(summary.gpus)
    assert [row[:4] for row in (table.names, *table.rows)] == [
        ("GPU", "util %", "SM %", "tensor %"),
        ("n1:0", "100", "12", "3"),
        ("n1:1", "100", "90", "60"),
    ]
    assert "active" not in dict(summary_text.summary_lines(unmeasured))
    assert "SM %" not in summary_text.figures_table(unmeasured.gpus).names


def test_process_peaks_are_within_the_session(tmp_path: Path) -> None:
    def seen(i: int) -> tuple[ProcessSample, ...]:
        memory = 90_000 if i < 4 else 1_000 * i
        first = process_row(gpu_memory_mib=memory, sm_pct=i, cpu_pct=100 + i, memory_mib=i)
        second = process_row(gpu_memory_mib=70_000)
        return (
            ProcessSample(0, 11, "ada", "train.py" if i > 5 else "sh", 3, 1, first),
            ProcessSample(1, 12, "ada", "eval.py", None, None, second),
        )

    path = tmp_path / "run.duckdb"
    row = gpu_row(util_pct=50)
    frames = [arrived(i, [row, row], processes=seen(i) if i % 2 else None) for i in range(1, 20)]
    record(path, [introduced(), *frames, *session()])
    with closing(FileSource(path)) as source:
        largest, trained = processes(source, periods.find_period(source))
    assert (largest.pid, largest.gpu_index, largest.rank, largest.gpu_memory_max_mib) == (12, 1, None, 70_000)
    assert (trained.pid, trained.rank, trained.local_rank, trained.command) == (11, 3, 1, "train.py")
    peaks = (trained.gpu_memory_max_mib, trained.sm_max_pct, trained.cpu_max_pct, trained.memory_max_mib)
    assert peaks == (15_000, 15, 115.0, 15)
    assert trained.sm_mean_pct == pytest.approx(10)
    when = [datetime.fromtimestamp(T0 + i, UTC).replace(tzinfo=None) for i in (5, 15)]
    assert [trained.first_seen, trained.last_seen] == when
    peaks_in_sql = query(path, "SELECT pid, rank, mem_used_max_mib FROM session_processes ORDER BY pid")
    assert peaks_in_sql == [(11, 3, 15_000), (12, None, 70_000)]


@pytest.mark.parametrize("at_once", [1, 16])
def test_periods_summarised_at_once_are_as_each_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(session_list, "PERIODS_AT_ONCE", at_once)
    path = tmp_path / "run.duckdb"
    for busy in (90, 40):
        frames = [
            arrived(i, [gpu_row(util_pct=busy - i, energy_mj=1000 * i * busy), None], node)
            for node in ("n1", "n2")
            for i in range(1, 10)
        ]
        lasting: list[Event] = [introduced("n1"), introduced("n2"), *frames]
        record(path, [*lasting, *session("a", T0 + 2, T0 + 6), *session("b", T0 + 4, T0 + 9)])
    with closing(FileSource(path)) as source:
        found = periods.load_sessions(source)
        listed = session_list.list_periods(source, found, lambda _share: None)
        alone = [summarize(source, period) for period in found]
    assert [one.period.name for one in listed] == ["a", "b", "a", "b"]
    assert [(one.period, one.whole, one.nodes, one.complete) for one in listed] == [
        (one.period, one.whole, len(one.covered), len(one.covered) - len(one.partial)) for one in alone
    ]
    assert len({one.whole.util_mean_pct for one in listed if one.whole}) == 4
