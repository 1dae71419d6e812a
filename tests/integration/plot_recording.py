"""Recordings for plots: a simulated job with faults, recorded by the real hub and recorder."""

from __future__ import annotations

import json
from pathlib import Path

from gswarm_agent.frame import ERROR, INFO, Note
from gswarm_tui.fleet.events import EventLogged
from gswarm_tui.store.recording.database import RecordingInfo
from gswarm_tui.store.recording.recorder import FileWriter
from tests.tui.scene import BEGINNING, Scene


class SimulatedJob(Scene):
    """A scene whose nodes can lose frames for good."""

    def skip(self, name: str, frames: int) -> None:
        """Lose the frames of a node for some seconds."""
        self._seq[name] += frames


def recorded(path: Path, nodes: int, gpus: int, seed: int) -> tuple[SimulatedJob, FileWriter]:
    """Yield a job whose nodes have run for 10 s, while it is recorded."""
    made = SimulatedJob(nodes, gpus, seed=seed)
    info = RecordingInfo(
        started_at=BEGINNING,
        host="login1",
        user_name="ada",
        command="gswarm-tui --job 4711",
        interval_ms=1000,
        tool_version="0.1.0",
        slurm_job_id="4711",
        slurm_cluster="tiny",
    )
    recorder = FileWriter(path, info, lambda _status: None)
    recorder.open()
    made.hub.sinks.append(recorder)
    made.connect()
    made.advance(10)
    return made, recorder


def record_runs(path: Path) -> Path:
    """Record the same work in sessions "run_1" (600 s) and "run_2" (480 s), each with three marked epochs."""
    made, recorder = recorded(path, 8, 8, seed=3)
    for run, seconds in ((1, 600), (2, 480)):
        made.hub.start_session(f"run_{run}")
        for epoch in (1, 2, 3):
            made.advance(seconds // 3)
            detail = json.dumps({"loss": round(2.4 / epoch**0.7 + 0.21, 3), "images_s": 2_400_000 // seconds})
            made.hub.publish(EventLogged(made.time, "mark", INFO, f"epoch {epoch}", detail=detail))
        made.hub.stop_session(made.fleet.sessions.running[-1].session_id)
        made.advance(50)
    status = recorder.close(made.time)
    assert not status.error, status.error
    return path


def record_training(path: Path, nodes: int = 8, gpus: int = 8, seconds: int = 1200, seed: int = 3) -> Path:
    """Record warm-up and training in session "full_training", with marked epochs; node 6 is lost for 90 s.

    The session lasts from 10 s after ``BEGINNING`` (2026-03-02 14:00 UTC) to 10 s before the end.
    """
    made, recorder = recorded(path, nodes, gpus, seed)
    made.hub.start_session("full_training")
    main = made.fleet.sessions.running[-1].session_id
    made.hub.start_session("warm_up")
    warm_up = made.fleet.sessions.running[-1].session_id
    eighth = (seconds - 20) // 8
    for step in range(8):
        if step == 1:
            made.hub.stop_session(warm_up)
        if step == 3:
            made.lose(made.names[min(5, nodes - 1)], "connection reset by peer", "check that the node is up")
        if step == 5:
            text = "XID 79: GPU 2 has fallen off the bus"
            made.note(made.names[0], Note("xid", ERROR, text, min(2, gpus - 1)))
            made.hub.start_session("evaluation")
        if step == 6:
            made.hub.stop_session(made.fleet.sessions.running[-1].session_id)
        detail = json.dumps({"loss": round(2.4 / (1 + step) ** 0.7 + 0.21, 3), "images_s": 4100 + 37 * step})
        made.hub.publish(EventLogged(made.time, "mark", INFO, f"epoch {step + 1}", detail=detail))
        away = min(90, eighth // 2) if step == 3 else 0
        if away:
            made.advance(away)
            made.skip(made.names[min(5, nodes - 1)], away)
            made.bring_back(made.names[min(5, nodes - 1)])
        made.advance(eighth - away)
    made.hub.stop_session(main)
    made.advance(10)
    status = recorder.close(made.time)
    assert not status.error, status.error
    return path
