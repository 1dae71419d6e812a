"""How often the driver refreshes values, measured from samples that come faster."""

from __future__ import annotations

import numpy as np
import pytest

from gswarm_agent.metrics import GPU_COLUMNS
from gswarm_tui.fleet.refresh import refresh_ms, slow_refreshes
from gswarm_tui.tui.screens.node_tables import unmeasured_rows
from tests.tui.scene import Scene


def test_power_refreshed_each_second_is_found_in_samples_of_a_tenth() -> None:
    times = np.arange(600) / 10
    values = (300 + 7 * (times.round(3) // 1)).astype(np.float32)
    assert refresh_ms(times, values) == 1000.0


def test_refreshes_that_bring_equal_values_and_missing_samples_change_nothing() -> None:
    times = np.arange(600) / 10
    second = (times.round(3) // 1).astype(int)
    values = np.where(second % 4 == 3, second - 1, second).astype(np.float32)
    values[second == 20] = np.nan
    assert refresh_ms(times, values) == 1000.0


def test_steady_values_say_nothing_about_their_refresh() -> None:
    assert refresh_ms(np.arange(600) / 10, np.full(600, 100, dtype=np.float32)) is None


def test_node_lists_only_metrics_that_are_refreshed_more_slowly_than_sampled() -> None:
    scene = Scene(1, 2, interval_s=0.1).connect().advance(30)
    node = next(iter(scene.fleet.nodes.values()))
    now = scene.hub.fleet.nodes[node.name].last_arrival or 0.0
    before = slow_refreshes(node, now)
    assert "power_w" not in before, "the simulation changes power at each sample"
    assert node.gpu_history is not None
    history = node.gpu_history
    times, _ = history.series(GPU_COLUMNS.index("power_w"))
    rows = np.arange(len(times))
    history.block.values[rows, history.seat, :, GPU_COLUMNS.index("power_w")] = (times // 1 % 1000)[
        :, np.newaxis
    ]
    assert slow_refreshes(node, now)["power_w"] == pytest.approx((1000, 100))
    words = ["".join(span.text for span in row) for row in unmeasured_rows(node, now)]
    assert any("power" in line and "refresh_ms 1000" in line for line in words)
