"""Changes of the sampling interval during a recording: each sample keeps its own interval."""

from __future__ import annotations

from pathlib import Path

import pytest

from gswarm_tui.fleet.events import Event, SessionStarted
from tests.unit.store_recording import T0, arrived, gpu_row, introduced, query, record

STEPS = ((1.0, 10, 100), (0.25, 40, 0), (5.0, 4, 100))
"""Interval in seconds, number of frames, and their utilisation."""


def test_busy_time_energy_and_coverage_are_correct_after_interval_changes(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    events: list[Event] = [introduced(gpus=1), SessionStarted("a", T0, "train", T0)]
    events.append(arrived(1, [gpu_row(util_pct=100, energy_mj=0)], ts=T0))
    seq, ts = 1, T0
    for every_s, frames, util in STEPS:
        for _ in range(frames):
            seq, ts = seq + 1, ts + every_s
            row = gpu_row(util_pct=util, energy_mj=round((ts - T0) * 300_000))
            events.append(arrived(seq, [row], ts=ts))
    record(path, events, ended_at=ts + 0.001)
    found = query(
        path, "SELECT DISTINCT interval_ms FROM host_samples WHERE interval_ms IS NOT NULL ORDER BY 1"
    )
    assert found == [(250,), (1000,), (5000,)]
    [(covered_s, complete)] = query(path, "SELECT covered_s, complete FROM session_coverage")
    assert (covered_s, complete) == (pytest.approx(40, abs=0.01), True)
    [(busy_s, idle_s, energy_j)] = query(
        path, "SELECT busy_s, idle_s, energy_j FROM session_summary WHERE scope = 'all'"
    )
    assert (busy_s, idle_s, energy_j) == (pytest.approx(30), pytest.approx(10), pytest.approx(40 * 300))
