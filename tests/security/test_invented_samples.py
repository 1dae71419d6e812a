"""Samples that a lying node invents: the sums by minute of other nodes stay, and the recording is closed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gswarm_tui.cli import main
from gswarm_tui.fleet.events import Event
from tests.unit.store_recording import T0, arrived, gpu_row, introduced, query, record

LARGE = 9e10
"""Two samples of this power fit into a BIGINT, in centiwatts times microseconds; their sum doesn't."""


@pytest.mark.parametrize("value", [LARGE, -LARGE])
def test_sums_too_large_for_their_column_cost_no_other_gpu_its_sums(tmp_path: Path, value: float) -> None:
    path = tmp_path / "run.duckdb"
    events: list[Event] = [introduced("honest", gpus=1), introduced("liar", gpus=1)]
    for seq in range(1, 70):
        events.append(arrived(seq, [gpu_row(util_pct=50, power_w=300.0)], "honest"))
        events.append(arrived(seq, [gpu_row(util_pct=50, power_w=value)], "liar"))
    record(path, events, ended_at=T0 + 100)
    sums = (
        "SELECT count(*), sum(power_sum) FROM gpu_minutes JOIN gpus USING (gpu_id) JOIN nodes USING (node_id)"
    )
    assert query(path, f"{sums} WHERE node = 'honest'") == [(2, 68 * 30_000 * 1_000_000)]
    assert query(path, "SELECT count(*) FILTER (power_sum IS NULL) > 0 FROM gpu_minutes") == [(True,)]


def test_clock_that_starts_in_1970_leaves_the_recording_readable(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    events: list[Event] = [introduced("n1", gpus=1)]
    for seq in range(1, 5):
        ts = T0 + seq if seq > 2 else float(seq)
        events.append(arrived(seq, [gpu_row(util_pct=50, energy_mj=1000 * seq)], ts=ts))
    record(path, events)
    assert query(path, "SELECT max(energy_used_ms) > 50 * 365 * 86_400_000::BIGINT FROM gpu_samples") == [
        (True,)
    ]
    assert main(["sessions", "--db", str(path)]) == 0


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["report", "-o", "report.html"], id="report"),
        pytest.param(["export", "-o", "export.json", "--format", "json"], id="export"),
    ],
)
def test_clock_that_leaps_by_days_stops_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """The sample after the leap covers 40 h by the node's clock: milliseconds near the end of an INTEGER."""
    monkeypatch.chdir(tmp_path)
    rows, leap_s = [gpu_row(util_pct=50, mem_used_mib=81_000)], 40 * 3600.0
    events: list[Event] = [introduced("n1", gpus=1)]
    events += [arrived(seq, rows, ts=T0 + seq + (leap_s if seq > 5 else 0)) for seq in range(1, 11)]
    record(tmp_path / "run.duckdb", events, ended_at=T0 + leap_s + 20)
    assert main([*words, "--db", "run.duckdb"]) == 0
