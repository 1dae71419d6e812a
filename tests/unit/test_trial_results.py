"""Results of trials: figures, knee, and the sentence, table and notes made from them."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pytest

from gswarm_tui.analysis.summary_text import TextTable
from gswarm_tui.commands.trial_output import results_json
from gswarm_tui.common.errors import UserError
from gswarm_tui.printing.table import show
from gswarm_tui.trials.outcome import FAILED, OK, TIMEOUT, RunOutcome
from gswarm_tui.trials.plan import PACKED, SPREAD, Placement, TrialPlan, TrialRun
from gswarm_tui.trials.result_text import notes, result_table, sentence
from gswarm_tui.trials.results import MeasuredRun, RunFigures, TrialResults, trial_results

Times = Mapping[Placement, Sequence[float]]


def nodes(number: int, gpus: int = 4, spread: str = PACKED) -> Placement:
    """Return a placement."""
    return Placement(number, gpus, spread)


def measured(
    placement: Placement, repeat: int, seconds: float, *, status: str = OK, **changes: Any
) -> MeasuredRun:
    """Return a run with an energy of 100 W a GPU; ``changes`` are of its outcome or its figures."""
    run = TrialRun(repeat, placement, max(1, repeat), warm_up=repeat == 0)
    of_outcome = {name: changes.pop(name) for name in ("throughput", "reason") if name in changes}
    figures = RunFigures(energy_j=100.0 * placement.gpus * seconds, **changes)
    return MeasuredRun(RunOutcome("t", run, status, 0.0, seconds, **of_outcome), figures)


def results(*runs: MeasuredRun, throughput: str | None = None) -> TrialResults:
    """Return the results of runs of one trial."""
    planned = tuple(run.outcome.run for run in runs)
    return trial_results(TrialPlan("t", ("python", "train.py"), planned, throughput=throughput), runs)


def of_times(times: Times, **figures: Any) -> TrialResults:
    """Return the results of complete runs with these wall times, and the same figures each."""
    return results(
        *(
            measured(placement, repeat, seconds, **figures)
            for placement, repeats in times.items()
            for repeat, seconds in enumerate(repeats, 1)
        )
    )


def column(table: TextTable, name: str) -> list[str]:
    """Return the cells of a column."""
    return [row[table.names.index(name)] for row in table.rows]


def printed(table: TextTable) -> list[str]:
    """Return a table as a terminal of 80 columns shows it."""
    out = io.StringIO()
    show(table.names, table.rows, out, right=table.right, width=80)
    return out.getvalue().splitlines()


def test_crafted_times_and_throughputs_do_not_end_the_results() -> None:
    for one, two in ((1e9, 1e-300), (1e-308, 1e9), (0.0, 3.0)):
        made = results(measured(nodes(1), 1, one), measured(nodes(2), 1, two))
        assert json.dumps(results_json(made), allow_nan=False)
    for rate in (1e-308, 1e308, math.inf, math.nan, 0.0, -3.0):
        runs = (measured(nodes(1), 1, 8, throughput=3.0), measured(nodes(2), 1, 8, throughput=rate))
        made = results(*runs, throughput="(x)")
        assert column(result_table(made), "speed-up") == ["1.00 ×", "–"]
    made = results(*(measured(nodes(n), 1, 8, throughput=1e-30 * n**20) for n in (1, 8)), throughput="(x)")
    assert json.dumps(results_json(made), allow_nan=False)


def test_published_rapids_and_dask_figures_are_reproduced() -> None:
    """254.0 s on one GPU and 128.7 s on two are 1.97 times as fast, at 98.7 %."""
    made = of_times({nodes(1, 1): [254.0], nodes(2, 1): [128.7]})
    assert sentence(made) == "2 nodes × 1 GPU: 2.0 × as fast, 99 %."
    table = result_table(made)
    assert column(table, "speed-up") == ["1.00 ×", "1.97 ×"]
    assert column(table, "efficiency") == ["100.0 %", "* 98.7 %"]
    assert column(table, "GPU time") == ["4.23 min", "4.29 min"]


def test_sentence_names_knee_and_largest_placement() -> None:
    made = results(
        measured(nodes(1), 1, 340.0),
        measured(nodes(2), 1, 180.0),
        measured(nodes(4), 1, 100.0),
        measured(nodes(8), 1, 83.0),
    )
    assert sentence(made) == ("4 nodes × 4 GPUs: 3.4 × as fast, 85 %; 8 nodes × 4 GPUs: 4.1 ×, 51 %.")


def test_median_and_half_the_range_are_of_the_repeats() -> None:
    made = of_times({nodes(1): [100.0, 104.0, 96.0], nodes(2): [50.0, 62.5, 51.0]})
    first, second = made.rows
    assert (first.seconds, second.seconds) == (100.0, 51.0)
    assert first.spread == pytest.approx(0.04)
    assert second.spread == pytest.approx(12.5 / 2 / 51)


def test_failed_runs_are_shown_and_not_averaged() -> None:
    made = results(
        measured(nodes(1), 1, 100.0),
        measured(nodes(2), 1, 52.0),
        measured(nodes(2), 2, 3.0, status=FAILED, reason="exit status 1"),
        measured(nodes(4), 1, 600.0, status=TIMEOUT),
        measured(nodes(4), 2, 20.0, status=FAILED, reason="gpu02 failed"),
    )
    assert column(result_table(made), "time") == ["00:01:40", "52 s", "–"]
    assert [note for note in notes(made) if note.startswith("Not averaged")] == [
        "Not averaged: 2 nodes × 4 GPUs, repeat 2: exit status 1 (3 s).",
        "Not averaged: 4 nodes × 4 GPUs, repeat 1: timeout (00:10:00).",
        "Not averaged: 4 nodes × 4 GPUs, repeat 2: gpu02 failed (20 s).",
    ]


def test_warm_up_run_is_not_compared() -> None:
    made = results(measured(nodes(1), 0, 500.0), measured(nodes(1), 1, 100.0), measured(nodes(2), 1, 50.0))
    assert made.rows[0].seconds == 100.0


def test_without_a_complete_run_nothing_is_compared() -> None:
    made = results(measured(nodes(1), 1, 3.0, status=FAILED), measured(nodes(2), 1, 3.0, status=FAILED))
    assert sentence(made) == "No run has completed, so there is nothing to compare."
    assert column(result_table(made), "speed-up") == ["–", "–"]


def test_smallest_placement_with_a_complete_run_is_the_baseline() -> None:
    made = results(
        measured(nodes(1), 1, 3.0, status=FAILED), measured(nodes(2), 1, 60.0), measured(nodes(4), 1, 40.0)
    )
    assert column(result_table(made), "efficiency") == ["–", "100.0 %", "* 75.0 %"]
    assert "compare medians with those of 2 nodes × 4 GPUs, on n times the GPUs" in " ".join(notes(made))


def test_knee_may_be_the_smallest_placement() -> None:
    made = of_times({nodes(1): [100.0], nodes(4): [90.0]})
    assert sentence(made) == "4 nodes × 4 GPUs: 1.1 × as fast, 28 %; the knee is 1 node × 4 GPUs."


def test_throughput_is_compared_and_costs_are_per_unit_of_work() -> None:
    made = results(
        measured(nodes(1), 1, 60.0, throughput=1000.0),
        measured(nodes(2), 1, 60.0, throughput=1900.0),
        measured(nodes(4), 1, 60.0, throughput=None),
        throughput=r"samples/s: ([0-9.]+)",
    )
    table = result_table(made)
    assert made.plan.unit == 1000
    assert column(table, "per s") == ["1,000", "1,900", "–"]
    assert column(table, "efficiency") == ["100.0 %", "* 95.0 %", "–"]
    assert column(table, "GPU time") == ["4 s", "4.21 s", "–"]
    first = made.rows[0]
    assert first.energy_j == pytest.approx(400.0)
    assert "per 1,000 of the throughput's unit" in " ".join(notes(made))
    assert "4 nodes × 4 GPUs, repeat 1: no throughput in its output (60 s)" in " ".join(notes(made))


def test_packed_and_spread_placements_have_distinct_names() -> None:
    made = of_times({nodes(1, 4): [100.0], nodes(2, 4): [55.0], nodes(4, 2, SPREAD): [70.0]})
    assert column(result_table(made), "nodes") == ["1", "2", "4"]
    assert sentence(made).startswith("2 nodes × 4 GPUs: 1.8 × as fast")


def test_the_table_fits_80_columns_without_hidden_figures() -> None:
    long = {nodes(1, 8): [86_000.0] * 2, nodes(256, 8): [1234.0, 1299.0], nodes(512, 4, SPREAD): [9000.0] * 2}
    made = of_times(long, balance=0.991, util_mean_pct=99.7)
    lines = printed(result_table(made))
    assert not any("Hidden" in line for line in lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    "change",
    [
        {"wall_s": float("nan")},
        {"wall_s": float("inf")},
        {"wall_s": -1.0},
        {"nodes": -3},
        {"node_list": "n[1-100000000]"},
    ],
)
def test_crafted_outcomes_are_refused(change: dict[str, object]) -> None:
    row: dict[str, object] = {
        "trial": "t", "run": 1, "nodes": 1, "gpus_per_node": 1, "placement": PACKED, "repeat": 1,
        "warm_up": False, "status": OK, "ts": datetime(2026, 3, 2), "wall_s": 1.0,  # noqa: DTZ001
        "throughput": None, "exit_status": 0, "reason": None, "job": None, "node_list": "", "session_id": 1,
    }  # fmt: skip
    assert RunOutcome.from_row(row).ok
    with pytest.raises((ValueError, UserError)):
        RunOutcome.from_row(row | change)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"nodes": 1,', '"nodes": "x",'),
        ('"nodes": 1,', '"nodes": 0,'),
        ('"command"', '"colour"'),
        ('{"trial_id"', "[" * 10_000),
    ],
)
def test_crafted_plans_are_refused(old: str, new: str) -> None:
    plan = TrialPlan("t", ("python", "train.py"), (TrialRun(1, nodes(1), 1),))
    assert TrialPlan.from_json(plan.to_json()) == plan
    assert old in plan.to_json()
    with pytest.raises(ValueError, match=r"no GPUs|plan of a trial"):
        TrialPlan.from_json(plan.to_json().replace(old, new))
