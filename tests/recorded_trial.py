"""Records trials of a scene's nodes, as ``gswarm-tui trial`` does."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from gswarm_agent.frame import INFO
from gswarm_tui.fleet.events import EventLogged
from gswarm_tui.fleet.trial_kinds import TRIAL_PLANNED, TRIAL_RUN
from gswarm_tui.trials.outcome import OK, RunOutcome
from gswarm_tui.trials.plan import Placement, TrialPlan, TrialRun
from tests.recorded import recorded
from tests.tui.scene import Scene

GPUS = 4


class Ran(NamedTuple):
    """A run of a trial: its number of nodes, its time, and how it ended. Repeat 0 is the warm-up."""

    nodes: int
    repeat: int
    seconds: float
    status: str = OK
    reason: str = ""


EXAMPLE_RUNS = (
    Ran(1, 0, 26.4),
    Ran(4, 1, 8.9),
    Ran(1, 1, 22.1),
    Ran(8, 1, 8.6),
    Ran(2, 1, 12.7),
    Ran(2, 2, 12.5),
    Ran(8, 2, 3.0, "failed", "exit status 1: NCCL error: unhandled system error"),
    Ran(1, 2, 21.9),
    Ran(4, 2, 8.7),
    Ran(8, 3, 8.8),
    Ran(4, 3, 8.8),
    Ran(1, 3, 22.0),
    Ran(2, 3, 12.6),
)
"""The trial of the documentation: 2 s + 20 s / n + 0.6 s · (n - 1), and one run that failed."""


def record_example_trial(path: Path) -> Path:
    """Record the trial of the documentation on eight nodes with four GPUs each."""
    recorded(path, Scene(8, GPUS), lambda scene: _run_trial(scene.connect()))
    return path


def _run_trial(made: Scene) -> None:
    planned = tuple(
        TrialRun(number, Placement(run.nodes, GPUS), max(1, run.repeat), warm_up=run.repeat == 0)
        for number, run in enumerate(EXAMPLE_RUNS, 1)
    )
    plan = TrialPlan("t1", ("python", "train.py", "--steps", "500"), planned)
    _log(made, TRIAL_PLANNED, "python train.py --steps 500", plan.to_json())
    made.advance(2)
    for run, how in zip(plan.runs, EXAMPLE_RUNS, strict=True):
        began = made.time
        session = made.hub.start_session(run.session)
        made.advance(how.seconds)
        made.hub.stop_session(session)
        _log_outcome(made, plan, run, how, began)
        made.advance(2)


def _log_outcome(made: Scene, plan: TrialPlan, run: TrialRun, how: Ran, began: float) -> None:
    outcome = RunOutcome(
        plan.trial_id,
        run,
        how.status,
        began,
        how.seconds,
        nodes=tuple(made.names[: how.nodes]),
        exit_status=0 if how.status == OK else None,
        reason=how.reason,
    )
    _log(made, TRIAL_RUN, f"{run}: {how.status}", outcome.to_json())


def _log(made: Scene, kind: str, message: str, detail: str) -> None:
    made.hub.publish(EventLogged(made.time, kind, INFO, message, detail=detail))
