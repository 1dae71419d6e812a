"""A run against its user's former ones, and nodes that are at fault in several runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gswarm_tui.insight.notes import closing_note
from gswarm_tui.runs import lemons, usual
from gswarm_tui.runs.finding_runs import once
from gswarm_tui.runs.line import FINISHED, NO_END, RunFinding, RunLine

RUN = RunLine(
    path="/runs/0.duckdb", size=1, mtime_ns=1, recording_id=1, run="run-0", name="train", name_s=3600.0,
    sessions=("train",), user="ada", host="login1", cluster="tiny", job="", command="gswarm-tui record",
    nodes=("gpu01", "gpu02"), gpus=8, gpu_models=("NVIDIA H100",), started_at=0.0, ended_at=3600.0,
    seconds=3600.0, state=FINISHED, energy_j=1e6, util_mean_pct=90.0, coverage=1.0, findings=(), marks={},
    driver="575.57", software=("torch 2.14.1", "NCCL 2.27.3"), sm_clock_mhz=1900.0,
    iowait_pct=1.0, disk_read_mb_s=1900.0, step_s=None,
)  # fmt: skip


def run(number: int, **changed: Any) -> RunLine:
    return replace(RUN, **{"run": f"run-{number}", "started_at": 86_400.0 * number, **changed})


def former(values: Sequence[float], name: str = "tokens_per_s") -> list[RunLine]:
    return [run(at, marks={name: value, "loss": 2.0}) for at, value in enumerate(values)]


def test_a_slower_run_is_found_with_its_cost_and_all_that_differs() -> None:
    slow = run(
        9,
        marks={"tokens_per_s": 40_000.0},
        nodes=("gpu01", "gpu07"),
        driver="580.95",
        software=("torch 2.14.1", "NCCL 2.28.0"),
        sm_clock_mhz=1500.0,
        iowait_pct=12.0,
        disk_read_mb_s=400.0,
    )
    text, finding = usual.compare(slow, former([50_000, 50_400, 49_800]))
    assert text == "tokens_per_s 40,000, usual tokens_per_s 50,000 (median of 3 former runs)"
    assert finding is not None
    assert (finding.kind, finding.severity, finding.nodes) == ("slower_than_usual", "waste", slow.nodes)
    assert finding.sentence == (
        f"train: {text} · 20 % less · differs: nodes gpu07, usual nodes gpu02, software NCCL 2.28.0, usual "
        "software NCCL 2.27.3, driver 580.95, usual driver 575.57, sm_clock_mhz 1,500 MHz, usual "
        "sm_clock_mhz 1,900 MHz, iowait_pct 12 %, usual iowait_pct 1 %, disk_read_mb_s 400 MB/s, usual "
        "disk_read_mb_s 1,900 MB/s · ≈ 96 GPU-min more than usual · look at what differs, and compare it "
        "with a former run by gswarm-tui compare"
    )
    assert closing_note([finding], {}, "")[1:] == [("findings", "no others were stored")]


@pytest.mark.parametrize(
    ("value", "others", "slower"),
    [
        pytest.param(44_000, [50_000, 50_100, 49_900], True, id="12 % less"),
        pytest.param(46_000, [50_000, 50_100, 49_900], False, id="8 % less"),
        pytest.param(44_000, [50_000, 44_000, 56_000, 41_000], False, id="former runs differ as much"),
        pytest.param(44_000, [50_000, 50_100, 49_900, 9_000], True, id="one bad run moves nothing"),
        pytest.param(60_000, [50_000, 50_100, 49_900], False, id="faster"),
    ],
)
def test_slower_is_by_a_tenth_and_by_three_deviations(
    value: float, others: list[float], slower: bool
) -> None:
    _, finding = usual.compare(run(9, marks={"tokens_per_s": value}), former(others))
    assert (finding is not None) == slower


def test_without_a_throughput_in_all_runs_steps_count_and_then_the_duration() -> None:
    known = former([50_000, 50_100, 49_900])
    steps = [replace(one, step_s=2.0) for one in known]
    _, finding = usual.compare(run(9, step_s=2.5), steps)
    assert finding is not None
    assert "step time 2.5 s, usual step time 2 s" in finding.sentence
    assert "25 % longer" in finding.sentence
    # A longer run may have done more work: a duration is a line of text only.
    text, longer = usual.compare(run(9, name_s=7200.0), known)
    assert text == "duration 7,200 s, usual duration 3,600 s (median of 3 former runs)"
    assert longer is None
    # A run that didn't end has no duration yet.
    assert usual.compare(run(9, name_s=7200.0, state=NO_END), known) == ("", None)


def test_only_earlier_runs_of_the_same_user_name_and_size_that_ended_count_once() -> None:
    slow = run(9, marks={"tokens_per_s": 1.0})
    known = former([50_000, 50_100])
    others = [
        run(3, name="other"), run(4, gpus=16), run(5, nodes=("gpu01",)), run(6, user="eve"),
        run(7, state=NO_END), run(8, name_s=300.0), run(8, name_s=90_000.0), run(10), slow, known[0],
    ]  # fmt: skip
    assert usual.compare(slow, known + others) == ("", None)


def test_the_throughput_of_training_that_most_former_runs_have_counts() -> None:
    marks = {
        "eval_samples/s": 1.0,
        "a/s": 1.0,
        "errors_per_s": 1.0,
        "fails/s": 1.0,
        "val_images_per_s": 1.0,
        "train/images_per_s": 40.0,
    }
    known = [run(at, marks=dict.fromkeys(marks, 50.0)) for at in range(3)]
    known += [run(3, marks={"train/images_per_s": 50.0})]
    known += [run(4, run=f"crash-{number}") for number in range(usual.MOST_RUNS)]
    text, finding = usual.compare(run(9, marks=marks), known)
    assert text == "train/images_per_s 40, usual train/images_per_s 50 (median of 4 former runs)"
    assert finding is not None


def test_runs_that_are_named_after_a_launcher_need_the_same_command() -> None:
    slow = run(9, name="srun", marks={"tokens_per_s": 1.0})
    known = [replace(one, name="srun") for one in former([50_000, 50_100, 49_900])]
    assert usual.compare(slow, known)[1] is not None
    assert usual.compare(replace(slow, command="gswarm-tui record -- srun ./other"), known) == ("", None)


def test_of_equal_copies_of_a_run_the_one_with_samples_counts() -> None:
    thinned = replace(RUN, path="/zz/archive.duckdb", thinned=True)
    assert once([thinned, RUN]) == once([RUN, thinned]) == [RUN]


def at_fault(number: int, kind: str = "thermal", uuid: str = "GPU-a", **changed: Any) -> RunLine:
    found = RunFinding(kind, "waste", "gpu02", 5 if uuid else None, uuid, 1.0)
    return run(number, **{"findings": (found,), **changed})


def test_a_gpu_at_fault_in_three_runs_is_a_lemon_until_it_is_clean_in_three() -> None:
    lines = [at_fault(1), run(2), at_fault(3, "slow_gpu"), at_fault(4), run(5)]
    (lemon,) = lemons.find(lines)
    assert lemon.text == "gpu02:5 in 3 of 5 runs (slow_gpu, thermal), last on 1970-01-05"
    assert (lemon.clean_since, lemon.uuid) == (1, "GPU-a")
    assert lemons.exclude_line([lemon, lemon._replace(node="gpu07")]) == "#SBATCH --exclude=gpu[02,07]"
    assert lemons.exclude_line(lemons.find([*lines, run(6), run(7)])) == ""


@pytest.mark.parametrize(
    "third",
    [
        pytest.param(at_fault(3, "idle_gpus"), id="the job's own waste"),
        pytest.param(at_fault(3, gpu_models=("NVIDIA H100 80GB HBM3 (simulated)",)), id="simulated"),
        pytest.param(at_fault(3, nodes=("gpu01",)), id="foreign node"),
    ],
)
def test_two_runs_make_no_lemon(third: RunLine) -> None:
    assert lemons.find([at_fault(1), at_fault(2), third]) == []


def test_a_node_is_a_lemon_for_faults_of_different_gpus() -> None:
    lines = [at_fault(1), at_fault(2, uuid=""), at_fault(3, uuid="GPU-new"), run(4)]
    (lemon,) = lemons.find(lines)
    assert lemon.text == "gpu02 in 3 of 4 runs (thermal), last on 1970-01-04"
    # GPUs of a healthy node take turns as the slowest one.
    assert lemons.find([at_fault(at, "slow_steps", f"GPU-{at}") for at in range(1, 9)]) == []
    # The node isn't named beside one of its GPUs for the same faults.
    (lemon,) = lemons.find([*lines, at_fault(5), at_fault(6)])
    assert (lemon.gpu_index, lemon.uuid, lemon.named_in, lemon.runs) == (5, "GPU-a", 3, 6)
