"""Samples that a lying node invents: the sums by minute of other nodes stay, and the recording is closed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gswarm_tui.fleet.events import Event
from tests.unit.store_recording import T0, arrived, gpu_row, introduced, query, record

LARGE = 9e10
"""Two samples of this power fit into a BIGINT, in centiwatts times microseconds; their sum doesn't."""


@pytest.mark.parametrize("metric", ["power_w", "throttle_power_pct", "throttle_thermal_pct"])
@pytest.mark.parametrize("value", [LARGE, -LARGE])
def test_sums_too_large_for_their_column_cost_no_other_gpu_its_sums(
    tmp_path: Path, metric: str, value: float
) -> None:
    path = tmp_path / "run.duckdb"
    events: list[Event] = [introduced("honest", gpus=1), introduced("liar", gpus=1)]
    for seq in range(1, 70):
        events.append(arrived(seq, [gpu_row(util_pct=50, power_w=300.0)], "honest"))
        events.append(arrived(seq, [gpu_row(util_pct=50, **{metric: value})], "liar"))
    record(path, events, ended_at=T0 + 100)
    sums = (
        "SELECT count(*), sum(power_sum) FROM gpu_minutes JOIN gpus USING (gpu_id) JOIN nodes USING (node_id)"
    )
    assert query(path, f"{sums} WHERE node = 'honest'") == [(2, 68 * 30_000 * 1_000_000)]
    column = metric.removesuffix("_w").removesuffix("_pct")
    column = "power_sum" if column == "power" else column
    assert query(path, f"SELECT count(*) FILTER ({column} IS NULL) > 0 FROM gpu_minutes") == [(True,)]
