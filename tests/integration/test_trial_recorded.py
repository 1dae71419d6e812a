"""Trials in a recording file: what is written is read again, also by SQL, and a requeued run is found."""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from gswarm_tui.cli import main
from gswarm_tui.fleet.trial_kinds import TRIAL_PLANNED, TRIAL_RUN, TRIAL_RUN_STARTED
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.trials.outcome import FAILED, INTERRUPTED, OK, REQUEUED, RunOutcome
from gswarm_tui.trials.plan import Placement, TrialPlan, ordered_runs
from gswarm_tui.trials.recorded import RecordedTrial, add_event, load_trials, unfinished_run
from gswarm_tui.trials.saved_plan import save_plan
from gswarm_tui.trials.trial_recorder import plan_texts

RUNS = ordered_runs([Placement(1, 2), Placement(2, 2)], 2, seed=3)
PLAN = TrialPlan("abc", ("python", "train.py", "--api-key", "sk-1234567890"), RUNS, throughput_mark='a "b/~')
T0 = 1_700_000_000


def add_session(path: Path, number: int, name: str, start: float, end: float) -> None:
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "INSERT INTO sessions (session_id, recording_id, name, started_at, ended_at) "
            "VALUES (?, 1, ?, make_timestamp(?), make_timestamp(?))",
            [number, name, round(start * 1e6), round(end * 1e6)],
        )


def recorded(path: Path) -> None:
    """Write a recording of job 4711 with the plan, an ended run with marks, and a failed one."""
    add_event(path, TRIAL_PLANNED, *plan_texts(PLAN))
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "INSERT INTO recordings (recording_id, started_at, slurm_job_id) "
            "VALUES (1, make_timestamp(?), '4711')",
            [T0 * 1_000_000],
        )
        for second, value in ((1, 10), (2, 30), (3, 20), (99, 5)):
            connection.execute(
                "INSERT INTO events (ts, recording_id, kind, message, detail) "
                "VALUES (make_timestamp(?), 1, 'mark', 'step', ?)",
                [(T0 + second) * 1_000_000, json.dumps({'a "b/~': value})],
            )
    ok = RunOutcome("abc", RUNS[0], OK, T0 + 0.25, 10.5, ("gpu01",), exit_status=0, job="4711")
    failed = RunOutcome(
        "abc", RUNS[1], FAILED, T0 + 20, 1.0, ("gpu01", "gpu02"), exit_status=3, reason="no room"
    )
    for number, outcome in ((7, ok), (8, failed)):
        add_session(path, number, outcome.run.session, outcome.started_at, outcome.started_at + 1)
        add_event(path, TRIAL_RUN, "a run", outcome.to_json())


def load(path: Path) -> RecordedTrial:
    with closing(FileSource(path)) as source:
        (trial,) = load_trials(source)
    return trial


def rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(FileSource(path)) as source:
        return source.query(sql).rows()


def unfinished(path: Path, requeued_job: str = "") -> RunOutcome | None:
    trial = load(path)
    with closing(FileSource(path)) as source:
        return unfinished_run(source, trial, requeued_job)


def test_trial_is_read_as_it_was_written_with_sessions_and_marks_but_without_secrets(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    recorded(path)
    trial = load(path)
    assert trial.plan == replace(PLAN, command=("python", "train.py", "--api-key", "***"))
    ok, failed = trial.outcomes
    assert (ok.run, ok.session_id, ok.throughput, ok.nodes) == (RUNS[0], 7, 20.0, ("gpu01",))
    assert (failed.run, failed.session_id, failed.reason) == (RUNS[1], 8, "no room")
    assert trial.left == RUNS[2:]
    nodes = RUNS[1].placement.nodes
    runs = 'SELECT run, nodes, status, node_list, "repeat" FROM trial_runs ORDER BY run'
    assert rows(path, runs) == [(1, 1, "ok", "gpu01", 1), (2, nodes, "failed", "gpu[01-02]", 1)]
    command = "python train.py --api-key '***'"
    assert rows(path, "SELECT trial, command FROM trials") == [("abc", command)]


def test_run_during_which_the_trial_was_killed_or_requeued_is_found_with_its_time(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    recorded(path)
    assert unfinished(path) is None
    run, at = RUNS[2], time.time()
    with duckdb.connect(str(path)) as connection:
        detail = json.dumps({"trial_id": "abc", "run": run.number, "session": run.session})
        connection.execute(
            "INSERT INTO events (ts, recording_id, kind, message, detail) "
            "VALUES (make_timestamp(?), 1, ?, 'starts', ?)",
            [round(at * 1e6), TRIAL_RUN_STARTED, detail],
        )
    add_session(path, 9, run.session, at + 0.5, at + 8)
    killed = unfinished(path, "4712")
    assert killed is not None
    assert (killed.run, killed.status, killed.reason) == (run, INTERRUPTED, "the trial was interrupted")
    found = unfinished(path, "4711")
    assert found is not None
    assert (found.run, found.status, round(found.wall_s, 3)) == (run, REQUEUED, 7.5)
    add_event(path, TRIAL_RUN, "requeued", found.to_json())
    assert unfinished(path) is None
    with duckdb.connect(str(path)) as connection:
        connection.execute("DELETE FROM events WHERE message = 'requeued'")
        connection.execute("UPDATE sessions SET ended_at = NULL WHERE session_id = 9")
        connection.execute(
            "INSERT INTO host_samples (ts, node_id, seq) VALUES (make_timestamp(?), 1, 1)",
            [round((at + 3) * 1e6)],
        )
    last = unfinished(path)
    assert last is not None
    assert round(last.wall_s, 3) == 2.5, "without an end, until the last sample"
    add_event(path, TRIAL_RUN, "requeued", found.to_json())
    assert rows(path, "SELECT session_id FROM trial_runs WHERE status = 'requeued'") == [(9,)]


def test_plan_that_can_not_be_read_gets_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path, why = tmp_path / "run.duckdb", "is damaged, or another version of gswarm-tui wrote it"
    save_plan(PLAN)
    add_event(path, TRIAL_PLANNED, *plan_texts(PLAN))
    (saved,) = (tmp_path / "gswarm-tui" / "trials").iterdir()
    saved.write_text('{"trial_id": "abc", "colour": 1}')
    assert main(["trial", "--resume", "--db", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"gswarm-tui: the plan of the trial can't be read: {saved} {why}; start a new trial.\n"
    )
    add_event(path, TRIAL_PLANNED, "train", '{"trial_id": "abd"}')
    assert main(["trial", "--results", "--db", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"gswarm-tui: {path} has a trial whose plan can't be read: it {why}.\n"
    )


def test_command_of_a_recording_made_elsewhere_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "run.duckdb"
    add_event(path, TRIAL_PLANNED, *plan_texts(PLAN))
    assert main(["trial", "--resume", "--db", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"gswarm-tui: the trial in {path} can't be resumed: it has ended, or was started with "
        f"another home folder; to start a new one in this file: gswarm-tui trial --db {path} -- COMMAND.\n"
    )


def test_dry_run_of_a_resumed_trial_prints_what_is_left_and_its_expected_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path, runs = tmp_path / "run.duckdb", ordered_runs([Placement(1, 4)], 2, seed=1)
    plan = TrialPlan("abd", ("train",), runs, seed=1)
    save_plan(plan)
    add_event(path, TRIAL_PLANNED, *plan_texts(plan))
    for run in runs[:2]:
        add_event(path, TRIAL_RUN, "ended", RunOutcome("abd", run, OK, T0, 900.0).to_json())
    assert main(["trial", "--resume", "--dry-run", "--db", str(path)]) == 0
    assert capsys.readouterr().out == (
        "1 run of train, in random order (seed 1)\n"
        "  1 node × 4 GPUs: 1 run\n"
        "  cost: about 1 GPU-hours in 00:15:00; 2 GPU-hours used so far\n"
    )
    capsys.readouterr()
    assert main(["trial", "--results", "--db", str(path)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("train · 1 placement · 1 of 2 runs ended\n")
    assert printed.err == (
        f"gswarm-tui: to do the runs that are left: gswarm-tui trial --resume --db {path}\n"
    )
