"""Plans of trials: placements, the order of runs, cost, limits, and the outcome of a run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from gswarm_tui.options.arguments import UsageError
from gswarm_tui.options.trial_options import parse_trial
from gswarm_tui.trials.outcome import (
    FAILED,
    OK,
    RunOutcome,
)
from gswarm_tui.trials.plan import (
    SPREAD,
    Placement,
    TrialError,
    TrialPlan,
    TrialRun,
    ordered_runs,
    placements_of,
)
from gswarm_tui.trials.running import RunOutput, classify

FOUR = {f"gpu0{number}": 8 for number in range(1, 5)}
UNEVEN = {"gpu01": 8, "gpu02": 4, "gpu03": 8}
PACKED_AND_SPREAD = ("packed", "spread")


def shorts(placements: list[Placement]) -> list[str]:
    return [one.short for one in placements]


def plan(runs: tuple[TrialRun, ...], **settings: float | None) -> TrialPlan:
    return TrialPlan("abc", ("train",), runs, **settings)  # type: ignore[arg-type]


def done(run: TrialRun, wall_s: float, status: str = OK) -> RunOutcome:
    return RunOutcome("abc", run, status, 1e9, wall_s)


def test_node_counts_default_to_powers_of_two_and_all_nodes() -> None:
    assert shorts(placements_of((), (), ("packed",), FOUR)) == ["1x8", "2x8", "4x8"]
    three = dict(list(FOUR.items())[:3])
    assert shorts(placements_of((), (4,), ("packed",), three)) == ["1x4", "2x4", "3x4"]


def test_spread_puts_as_many_gpus_on_the_most_nodes_and_is_left_out_where_it_is_packed() -> None:
    found = placements_of((1, 2, 4), (4,), PACKED_AND_SPREAD, FOUR)
    assert shorts(found) == ["1x4", "4x1-spread", "2x4", "4x2-spread", "4x4"]
    assert shorts(placements_of((1,), (4,), ("spread",), UNEVEN)) == ["2x2-spread"], "3 don't divide 4"


def test_placements_use_only_nodes_with_enough_gpus() -> None:
    assert shorts(placements_of((), (8,), ("packed",), UNEVEN)) == ["1x8", "2x8"]
    with pytest.raises(TrialError, match="no placement on 3 nodes with 8 GPUs: the job has 2 such nodes"):
        placements_of((3,), (8,), ("packed",), UNEVEN)


def test_a_job_without_counted_gpus_needs_their_number() -> None:
    with pytest.raises(TrialError, match="Slurm counts no GPUs of the job; name the number of each node"):
        placements_of((), (), ("packed",), {"gpu01": 0})


def test_each_repeat_has_all_placements_once_in_random_order() -> None:
    placements = placements_of((1, 2, 4), (4, 8), ("packed",), FOUR)
    runs = ordered_runs(placements, 3, seed="7")
    assert runs != ordered_runs(placements, 3, seed="8")
    assert runs[0] == TrialRun(1, Placement(1, 4), 1, warm_up=True)
    assert [run.number for run in runs] == list(range(1, 20))
    for repeat in (1, 2, 3):
        block = runs[1 + 6 * (repeat - 1) : 1 + 6 * repeat]
        assert {run.repeat for run in block} == {repeat}
        assert Counter(run.placement for run in block) == Counter(placements)


def test_too_many_runs_are_refused() -> None:
    with pytest.raises(TrialError, match="this plan has 1,201 runs; 500 are possible"):
        ordered_runs([Placement(nodes, 1) for nodes in range(1, 13)], 100, seed="1")


def test_plans_and_outcomes_survive_their_json() -> None:
    original = TrialPlan(
        "abc", ("a", "b c", ""), ordered_runs([Placement(1, 2), Placement(2, 1, SPREAD)], 2, "5"),
        timeout_s=1.5, ntasks_per_node=1,
    )  # fmt: skip
    assert TrialPlan.from_json(original.to_json()) == original
    largest = [Placement(10_000, 64, SPREAD) for _ in range(499)]
    environment = TrialPlan("abc", ("x" * 10_000,), ordered_runs(largest, 1, "5")).to_json()
    assert len(environment) < 128 * 1024, "Linux limits a variable"


@pytest.mark.parametrize(
    ("status", "lines", "expected"),
    [
        (0, ["done"], (OK, "")),
        (
            3,
            ["Traceback", "ValueError: x.", "srun: error: gpu01: task 0: Exited with exit code 3"],
            (FAILED, "exit status 3: ValueError: x"),
        ),
        (
            1,
            ["srun: error: Unable to create step for job 5: Requested nodes are busy"],
            (FAILED, "Slurm: Unable to create step for job 5: Requested nodes are busy"),
        ),
        (1, [], (FAILED, "exit status 1")),
        (0, ["srun: error: Node failure on gpu02"], (FAILED, "Slurm: Node failure on gpu02")),
        (0, ["slurmstepd-gpu01: error: *** STEP 5.0 ON gpu01 CANCELLED AT x ***"],
         (FAILED, "Slurm: *** STEP 5.0 ON gpu01 CANCELLED AT x ***")),
        (0, ["the log says: Node failure on gpu02"], (OK, "")),
        (1, ["slurmstepd: error: *** STEP 5.0 ON gpu01 CANCELLED AT x DUE TO NODE FAILURE, SEE LOG ***"],
         (FAILED, "Slurm: *** STEP 5.0 ON gpu01 CANCELLED AT x DUE TO NODE FAILURE, SEE LOG ***")),
    ],
)  # fmt: skip
def test_status_and_last_lines_decide_the_outcome_of_a_run(
    status: int, lines: list[str], expected: tuple[str, str]
) -> None:
    assert classify(status, lines) == expected


@pytest.mark.parametrize(
    ("pattern", "printed", "throughput"),
    [
        ("s: ([0-9.]+)", "s: 3\rs: 5\ns: 4.5", 4.5),
        ("s: ([0-9.]+)", "s: 12.5, 1,000 steps.\n", 12.5),
        ("s: (.*)", "s: fast\n", None),
        ("s: (.*)", "s: nan\n", None),
        ("s: (.*)", "s: nan\ns: 2\n", 2),
        ("s: (.*)", "s: 0\ns: -2\n", None),
        (None, "s: 2\n", None),
    ],
)
def test_throughput_is_read_from_the_output_of_a_run(
    pattern: str | None, printed: str, throughput: float | None, tmp_path: Path
) -> None:
    output = RunOutput(tmp_path / "trial" / "1.log", pattern)
    output.add(printed.encode())
    output.close()
    assert output.throughput == throughput


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no command to try; write it after --: gswarm-tui trial -- python train.py."),
        (["train.py"], "write -- before the command: gswarm-tui trial -- train.py ..."),
        (["--throughput=rate", "--", "x"], '--throughput: "rate" has no groups; put the number, and nothing'),
        (["--throughput=(", "--", "x"], '--throughput: "(" isn\'t a regular expression: '),
        (["--node-counts=1,x", "--", "x"], '--node-counts: "x" isn\'t a number from 1 to 10,000.'),
        (["--placements=wide", "--", "x"], '--placements: "wide" is neither packed nor spread.'),
        (["--results", "--", "x"], "--results runs nothing; remove -- and the command after it."),
        (["--placements=", "--", "x"], '--placements: "" is neither packed nor spread.'),
    ],
)
def test_mistakes_on_the_command_line_get_one_sentence(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_trial(words, {"XDG_CONFIG_HOME": "/nowhere"})
    assert str(raised.value).startswith(message)


def test_words_after_the_dashes_are_the_command_exactly() -> None:
    command = ("python", "--job", "$HOME", "--", "")
    options = parse_trial(["--node-counts=4,1,2", "--", *command], {"XDG_CONFIG_HOME": "/nowhere"})
    assert options.command == command
    assert options.node_counts == (1, 2, 4)
