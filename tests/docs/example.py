"""The recording of the documentation's examples, and the commands' output for it."""

from __future__ import annotations

import functools
import io
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stdout
from pathlib import Path

import pytest

from gswarm_agent.frame import INFO
from gswarm_tui.cli import main
from gswarm_tui.fleet.events import EventLogged
from tests.integration.plot_recording import recorded
from tests.recorded_trial import record_example_trial

DATABASE = "gswarm-job4711.duckdb"


def record_example(folder: Path) -> None:
    """Write the recording of two runs of the same training on 32 GPUs, in three sessions with marks."""
    (folder / DATABASE).write_bytes(_database())


@functools.cache
def _database() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / DATABASE
        _record(path)
        return path.read_bytes()


def _record(path: Path) -> None:
    scene, recorder = recorded(path, 4, 8, seed=3)
    scene.hub.start_session("full_training")
    for session, seconds in (("train", 160), ("train-2", 128)):
        scene.hub.start_session(session)
        for epoch in range(1, 5):
            scene.advance(seconds // 4)
            values: dict[str, object] = {"loss": round(2.4 / epoch**0.7 + 0.21, 3)}
            scene.hub.publish(_mark(scene.time, f"epoch {epoch}", values))
        scene.hub.stop_session(scene.fleet.sessions.running[-1].session_id)
        scene.advance(10)
    scene.hub.publish(_mark(scene.time, "request", {"app": "chat", "queue_ms": 12.5, "processing_ms": 840}))
    status = recorder.close(scene.time)
    assert not status.error, status.error


def _mark(at: float, name: str, values: dict[str, object]) -> EventLogged:
    return EventLogged(at, "mark", INFO, name, detail=json.dumps(values))


@functools.cache
def example_output(*words: str) -> str:
    """Return a console block with a command and its output for the example."""
    with _example_folder() as folder, chdir(folder), redirect_stdout(io.StringIO()) as out, _utc():
        assert main(words) == 0
    command = " ".join(f'"{word}"' if " " in word else word for word in words)
    return f"```console\n$ gswarm-tui {command}\n{out.getvalue().rstrip()}\n```"


@functools.cache
def trial_output() -> str:
    """Return a console block with the results of the trial of the documentation."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        record_example_trial(Path("trial.duckdb"))
        with redirect_stdout(io.StringIO()) as out:
            assert main(["trial", "--results"]) == 0
    return f"```console\n$ gswarm-tui trial --results\n{out.getvalue().rstrip()}\n```"


@contextmanager
def _example_folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        record_example(Path(folder))
        yield folder


@contextmanager
def _utc() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()
