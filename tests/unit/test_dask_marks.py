"""What marks say about a Dask scheduler's tasks, by a clock of the test's own."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from gswarm_tui.runs.dask_marks import TaskMarks


def test_idle_time_is_that_of_threads_without_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    busy = SimpleNamespace(nthreads=1, processing=[SimpleNamespace(key="long")])
    workers = {"busy": busy, "idle": SimpleNamespace(nthreads=1, processing=[])}
    names = {"short": "sum of\n'squares'" + 60 * "x", "long": "long"}
    tasks = {key: SimpleNamespace(prefix=SimpleNamespace(name=name)) for key, name in names.items()}
    marks = TaskMarks(SimpleNamespace(total_nthreads=2, workers=workers, tasks=tasks))
    now += 50  # nothing is to be done, which is no idle time
    for key in ("short", "long"):
        marks.transition(key, "waiting", "processing")
    now += 4
    spans = [{"action": "transfer", "start": 0, "stop": 1}, {"action": "compute", "start": 1, "stop": 4}]
    marks.transition("short", "processing", "memory", startstops=spans)
    now += 6
    kind = "sum_of_squares_" + 45 * "x"
    assert marks.values() == {
        "dask_tasks": 1, "dask_unfinished": 1, "dask_threads": 2, "dask_work_s": 10,
        "dask_compute_s": 3, "dask_transfer_s": 1, "dask_idle_s": 6, "dask_idle_pct": 30,
        f"dask_compute_s/{kind}": 3, f"dask_tasks/{kind}": 1,
    }  # fmt: skip
