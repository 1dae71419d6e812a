"""Trials in a recording file: what is written is read again, also by SQL."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from gswarm_agent.frame import INFO
from gswarm_tui.cli import main
from gswarm_tui.fleet.trial_kinds import TRIAL_PLANNED, TRIAL_RUN
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.sql.schema import EVENTS
from gswarm_tui.store.transfer.importing import importing
from gswarm_tui.trials.outcome import FAILED, OK, RecordedTrial, RunOutcome, load_trials
from gswarm_tui.trials.plan import Placement, TrialPlan, ordered_runs
from gswarm_tui.trials.running import plan_texts

RUNS = ordered_runs([Placement(1, 2), Placement(2, 2)], 2, "3")
PLAN = TrialPlan("abc", ("python", "train.py", "--api-key", "sk-1234567890"), RUNS, throughput="s: ([0-9.]+)")
T0 = 1_700_000_000


def add_event(path: Path, kind: str, text: str, detail: str) -> None:
    """Add an event of a trial to a file; a new file is made."""
    with importing(path) as target:
        row = {
            "ts": T0 * 1_000_000,
            "recording_id": target.next_free("recording_id") - 1 or None,
            "kind": kind,
            "severity": INFO,
            "message": text,
            "detail": detail,
        }
        target.add(EVENTS, {name: [value] for name, value in row.items()})


def add_session(path: Path, number: int, name: str, start: float, end: float) -> None:
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "INSERT INTO sessions (session_id, recording_id, name, started_at, ended_at) "
            "VALUES (?, 1, ?, make_timestamp(?), make_timestamp(?))",
            [number, name, round(start * 1e6), round(end * 1e6)],
        )


def recorded(path: Path) -> None:
    """Write a recording of job 4711 with the plan, an ended run, and a failed one."""
    add_event(path, TRIAL_PLANNED, *plan_texts(PLAN))
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "INSERT INTO recordings (recording_id, started_at, slurm_job_id) "
            "VALUES (1, make_timestamp(?), '4711')",
            [T0 * 1_000_000],
        )
    ok = RunOutcome("abc", RUNS[0], OK, T0 + 0.25, 10.5, ("gpu01",), 20.0, 0, job="4711")
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


def test_trial_is_read_as_it_was_written_with_sessions_but_without_secrets(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    recorded(path)
    trial = load(path)
    assert trial.plan == replace(PLAN, command=("python", "train.py", "--api-key", "***"))
    ok, failed = trial.outcomes
    assert (ok.run, ok.session_id, ok.throughput, ok.nodes) == (RUNS[0], 7, 20.0, ("gpu01",))
    assert (failed.run, failed.session_id, failed.reason) == (RUNS[1], 8, "no room")
    nodes = RUNS[1].placement.nodes
    runs = 'SELECT run, nodes, status, node_list, "repeat" FROM trial_runs ORDER BY run'
    assert rows(path, runs) == [(1, 1, "ok", "gpu01", 1), (2, nodes, "failed", "gpu[01-02]", 1)]
    command = "python train.py --api-key '***'"
    assert rows(path, "SELECT trial, command FROM trials") == [("abc", command)]


def test_plan_that_can_not_be_read_gets_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.duckdb"
    add_event(path, TRIAL_PLANNED, "train", '{"trial_id": "abd"}')
    assert main(["trial", "--results", "--db", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"gswarm-tui: {path} has a trial whose plan can't be read: it is damaged, or another version of "
        "gswarm-tui wrote it.\n"
    )


def test_results_of_a_trial_that_stopped_say_how_many_runs_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, runs = tmp_path / "run.duckdb", ordered_runs([Placement(1, 4)], 2, "1")
    add_event(path, TRIAL_PLANNED, *plan_texts(TrialPlan("abd", ("train",), runs)))
    for run in runs[:2]:
        add_event(path, TRIAL_RUN, "ended", RunOutcome("abd", run, OK, T0, 900.0).to_json())
    assert main(["trial", "--results", "--db", str(path)]) == 0
    assert capsys.readouterr().out.startswith("train · 1 placement · 1 of 2 runs ended\n")
