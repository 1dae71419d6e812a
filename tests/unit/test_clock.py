"""The head's clock when the machine's is set."""

from __future__ import annotations

import time

import pytest

from gswarm_tui.clock import steady_wall


@pytest.mark.parametrize("step_s", [-86_400.0, 86_400.0])
def test_setting_the_machines_clock_changes_nothing(monkeypatch: pytest.MonkeyPatch, step_s: float) -> None:
    now = steady_wall()
    before, true_time = now(), time.time
    monkeypatch.setattr(time, "time", lambda: true_time() + step_s)
    assert 0 <= now() - before < 3600
