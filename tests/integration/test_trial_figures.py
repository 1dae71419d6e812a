"""Figures of a trial's runs: which GPUs count, and their energy and utilisation."""

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
from gswarm_tui.trials.results import RunFigures
from tests.unit.store_recording import T0, arrived, gpu_row, host_row, introduced, process_row, record

QUIET = host_row(net_rx_mb_s=0.1, net_tx_mb_s=0.1, cpu_iowait_pct=0, cpu_busiest_pct=50)
BUSY, IDLE = 90, 0


def gpus(*utils: int) -> list[Row]:
    """Return samples of GPUs with these utilisations."""
    return [gpu_row(util_pct=util, power_w=400) for util in utils]


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
    assert found.util_mean_pct == 75
    assert found.balance == pytest.approx(75 / 90)
    assert found.energy_j == pytest.approx(2 * 400 * 10)


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
    assert (found.util_mean_pct, found.balance) == (45, 0.5)


def test_figures_agree_with_the_summary_of_the_session(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    events = [*frames("n1", 11, (BUSY, 60, 5, IDLE)), *frames("n2", 11, (BUSY, BUSY, 70, IDLE))]
    found = figures_of(path, events, Placement(2, 4), ("n1", "n2"))
    with closing(FileSource(path)) as source:
        whole = summarize(source, find_period(source, "trial-2x4-1")).whole
    assert whole is not None
    assert found.energy_j == whole.energy_j
    assert found.util_mean_pct == whole.util_mean_pct
