"""Figures of a trial's runs: which GPUs count, their energy, traffic, and what they waited for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from gswarm_agent.frame import INFO, ProcessSample, Row
from gswarm_tui.analysis.periods import find_period
from gswarm_tui.analysis.summary_data import summarize
from gswarm_tui.fleet.events import (
    Event,
    EventLogged,
    SessionStarted,
    SessionStopped,
)
from gswarm_tui.fleet.trial_kinds import TRIAL_PLANNED, TRIAL_RUN
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.trials.figures import measure
from gswarm_tui.trials.outcome import OK, RunOutcome, load_trials
from gswarm_tui.trials.plan import Placement, TrialPlan, TrialRun
from gswarm_tui.trials.results import CPU, DISKS, NETWORK, SLOWEST, UNEXPLAINED, RunFigures
from tests.unit.store_recording import T0, arrived, gpu_row, host_row, introduced, process_row, record

QUIET = host_row(net_rx_mb_s=0.1, net_tx_mb_s=0.1, cpu_iowait_pct=0, cpu_busiest_pct=50)
BUSY, IDLE = 90, 0


def gpus(*utils: int) -> list[Row]:
    """Return samples of GPUs with these utilisations, and an NVLink rate of 100 MB/s."""
    return [gpu_row(util_pct=util, power_w=400, nvlink_rx_mb_s=100) for util in utils]


def frames(node: str, count: int, utils: Sequence[int], host: Row = QUIET, first: int = 1) -> list[Event]:
    """Return a frame each second, from second ``first`` on."""
    return [arrived(seq, gpus(*utils), node=node, host=host) for seq in range(first, first + count)]


def figures_of(
    path: Path,
    events: Sequence[Event],
    placement: Placement,
    nodes: tuple[str, ...],
    each: int = 4,
    command: str = "train",
) -> RunFigures:
    """Record a run from T0 + 1 to T0 + 11 with these frames of ``each`` GPUs; return its figures."""
    run = TrialRun(1, placement, 1)
    plan = TrialPlan("t1", (command,), (run,))
    outcome = RunOutcome("t1", run, OK, T0 + 1, 10.0, nodes)
    happened = [
        *(introduced(node, gpus=each) for node in ("n1", "n2")),
        EventLogged(T0, TRIAL_PLANNED, INFO, "train", detail=plan.to_json()),
        SessionStarted("s1", T0 + 1, run.session, T0 + 1),
        *sorted(events, key=lambda event: event.at),
        SessionStopped("s1", T0 + 11, T0 + 11),
        EventLogged(T0 + 11, TRIAL_RUN, INFO, "run 1: ok", detail=outcome.to_json()),
    ]
    record(path, happened)
    with closing(FileSource(path)) as source:
        (trial,) = load_trials(source)
        (measured,) = measure(source, trial.outcomes)
        assert measured.figures is not None
        return measured.figures


def test_figures_are_of_the_gpus_that_the_run_used(tmp_path: Path) -> None:
    """A run with two of a node's four GPUs used the two most utilised ones, and no GPU of other nodes."""
    events = [*frames("n1", 11, (BUSY, 60, 5, IDLE)), *frames("n2", 11, (BUSY, BUSY, BUSY, BUSY))]
    found = figures_of(tmp_path / "run.duckdb", events, Placement(1, 2), ("n1",))
    assert found.gpus == 2
    assert found.util_mean_pct == 75
    assert found.balance == pytest.approx(75 / 90)
    assert found.energy_j == pytest.approx(2 * 400 * 10)
    assert found.nvlink_mb == pytest.approx(2 * 100 * 10)
    assert found.network_mb == pytest.approx(0.1 * 10)


def test_idle_gpu_on_which_a_process_of_the_run_waits_counts(tmp_path: Path) -> None:
    processes = tuple(
        ProcessSample(
            gpu=gpu, pid=7 + gpu, user="eve", command="train", rank=gpu, local_rank=gpu, row=process_row()
        )
        for gpu in (0, 2)
    )
    rows = [gpus(BUSY, 3, IDLE, 2) for _ in range(11)]
    events = [
        arrived(seq, row, node="n1", host=QUIET, processes=processes if seq == 4 else None)
        for seq, row in enumerate(rows, 1)
    ]
    found = figures_of(tmp_path / "run.duckdb", events, Placement(1, 2), ("n1",))
    assert (found.gpus, found.util_mean_pct, found.balance) == (2, 45, 0.5)


def test_figures_agree_with_the_summary_of_the_session(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    events = [*frames("n1", 11, (BUSY, 60, 5, IDLE)), *frames("n2", 11, (BUSY, BUSY, 70, IDLE))]
    found = figures_of(path, events, Placement(2, 4), ("n1", "n2"))
    with closing(FileSource(path)) as source:
        whole = summarize(source, find_period(source, "trial-2x4-1")).whole
    assert whole is not None
    assert found.energy_j == whole.energy_j
    assert found.util_mean_pct == whole.util_mean_pct


def test_idle_gpu_waits_for_what_its_node_does(tmp_path: Path) -> None:
    """The GPU of n1 is idle from second 6 on, for another reason each second; that of n2 is busy until 10.

    Samples of n2 come up to 4 ms earlier or later.
    """
    hosts = {
        6: host_row(net_rx_mb_s=6, net_tx_mb_s=5, cpu_iowait_pct=50),
        7: host_row(ib_rx_mb_s=2000),
        8: host_row(net_rx_mb_s=1, cpu_iowait_pct=30, cpu_busiest_pct=100),
        9: host_row(net_rx_mb_s=1, cpu_iowait_pct=1, cpu_busiest_pct=99),
        10: QUIET,
        11: QUIET,
    }
    events = [
        *frames("n1", 5, (BUSY,)),
        *(arrived(seq, gpus(IDLE), node="n1", host=host) for seq, host in hosts.items()),
        *(
            arrived(seq, gpus(BUSY if seq < 11 else IDLE), node="n2", host=QUIET, ts=T0 + seq + jitter / 1000)
            for seq, jitter in zip(range(1, 12), (0, -4, 3, -1, 2, 1, -3, 4, -2, -1, 0), strict=True)
        ),
    ]
    found = figures_of(tmp_path / "run.duckdb", events, Placement(2, 1), ("n1", "n2"), each=1)
    expected = {NETWORK: 0.1, DISKS: 0.05, CPU: 0.05, SLOWEST: 0.05, UNEXPLAINED: 0.1}
    assert found.waits == pytest.approx(expected, abs=0.001)


def test_bytes_of_a_run_are_complete_at_its_edges_and_while_the_agent_was_stopped(tmp_path: Path) -> None:
    """Samples lie 0.4 s after full seconds; the agent was stopped for 3 s, with constant rates."""
    at = [0.4, 1.4, 2.4, 3.4, *(second + 0.4 for second in range(6, 13))]
    events = [
        arrived(seq, gpus(BUSY), node="n1", host=QUIET, ts=T0 + ts, gauge_ms=1500)
        for seq, ts in enumerate(at, 1)
    ]
    found = figures_of(tmp_path / "run.duckdb", events, Placement(1, 1), ("n1",), each=1)
    assert found.nvlink_mb == pytest.approx(100 * 10)
    assert found.network_mb == pytest.approx(0.1 * 10)
    assert found.energy_j == pytest.approx(400 * 8.5)


def test_bytes_of_a_gpu_that_did_not_answer_for_a_while_are_complete(tmp_path: Path) -> None:
    """GPU 0 doesn't answer in seconds 3 to 8; the rate of second 9 is of all the time since second 2."""
    rows: list[list[Row | None]] = [list(gpus(BUSY, BUSY)) for _ in range(12)]
    for second in range(3, 9):
        rows[second - 1][0] = None
    events = [arrived(seq, row, node="n1", host=QUIET) for seq, row in enumerate(rows, 1)]
    found = figures_of(tmp_path / "run.duckdb", events, Placement(1, 2), ("n1",), each=2)
    assert found.nvlink_mb == pytest.approx(2 * 100 * 10)
