"""Ranking of GPUs by a metric: worst first, by the mean of the last minute, without shuffling."""

from __future__ import annotations

import numpy as np
import pytest

from gswarm_agent.metrics import GPU_BY_NAME
from gswarm_tui.fleet.ranking import GpuRanking
from gswarm_tui.fleet.state import Fleet
from tests.unit.test_fleet import T0, frame, gpu_row, live


class Measured:
    """A node whose GPUs report one metric, a frame a second."""

    def __init__(self, gpus: int, metric: str = "util_pct", fleet: Fleet | None = None) -> None:
        self.fleet = live(gpus, fleet)
        self.metric, self.now, self._seq = GPU_BY_NAME[metric], T0, 0

    def report(self, *values: float | None, seconds: int = 1) -> None:
        for _ in range(seconds):
            self._seq += 1
            self.now += 1
            rows = [gpu_row() if value is None else gpu_row(**{self.metric.name: value}) for value in values]
            self.fleet.apply(frame(self._seq, self.now, *rows))

    def order(self, ranking: GpuRanking) -> list[int]:
        return [gpu.row for gpu in ranking.update(self.fleet.nodes.values(), self.now)]


def test_gpus_are_ranked_by_their_mean_of_the_last_minute() -> None:
    node = Measured(3)
    node.report(0, 90, 90, seconds=100)
    node.report(90, 50, 90, seconds=60)
    ranking = GpuRanking(node.metric)
    assert node.order(ranking) == [1, 0, 2]
    first, *_ = ranking.update(node.fleet.nodes.values(), node.now)
    assert (first.node, first.row) == ("gpu01", 1)
    assert first.mean == pytest.approx(50, abs=1)


def test_high_temperatures_and_low_utilisation_are_the_worst() -> None:
    node = Measured(3, "temp_c")
    node.report(60, 85, 70, seconds=5)
    assert node.order(GpuRanking(node.metric)) == [1, 2, 0]
    assert node.order(GpuRanking(node.metric, highest_first=False)) == [0, 2, 1]


def test_small_changes_keep_the_order_and_large_ones_change_it() -> None:
    node = Measured(3)
    node.report(96, 96.5, 97, seconds=60)
    ranking = GpuRanking(node.metric)
    assert node.order(ranking) == [0, 1, 2]
    node.report(97, 96.5, 96, seconds=60)
    assert node.order(ranking) == [0, 1, 2], "two percent are noise"
    node.report(97, 96.5, 60, seconds=60)
    assert node.order(ranking) == [2, 0, 1]


def test_unmeasured_gpus_come_last() -> None:
    node = Measured(3)
    node.report(None, 90, 20, seconds=5)
    ranked = GpuRanking(node.metric).update(node.fleet.nodes.values(), node.now)
    assert [gpu.row for gpu in ranked] == [2, 1, 0]
    assert np.isnan(ranked[-1].mean)


def test_only_the_gpus_of_the_job_are_ranked() -> None:
    node = Measured(3, fleet=Fleet(["gpu01"], allocation={"gpu01": frozenset({0, 2})}))
    node.report(50, 0, 10, seconds=5)
    assert node.order(GpuRanking(node.metric)) == [2, 0]


def test_a_gpu_without_clock_reasons_has_no_share() -> None:
    node = Measured(2, "clock_reasons")
    assert all(np.isnan(gpu.mean) for gpu in GpuRanking(node.metric).update(node.fleet.nodes.values(), T0))
    node.report(None, 0x1, seconds=5)
    shares = {
        gpu.row: gpu.mean for gpu in GpuRanking(node.metric).update(node.fleet.nodes.values(), node.now)
    }
    assert np.isnan(shares[0])
    assert shares[1] == 0


def test_clock_reasons_are_the_share_of_throttled_samples() -> None:
    node = Measured(2, "clock_reasons")
    node.report(0x4, 0x8, seconds=30)
    node.report(0x4, 0x4, seconds=30)
    first, second = GpuRanking(node.metric).update(node.fleet.nodes.values(), node.now)
    assert (first.row, second.row, second.mean) == (1, 0, 0)
    assert first.mean == pytest.approx(50, abs=2)


def test_a_single_error_ranks_a_gpu_beside_one_with_thousands() -> None:
    node = Measured(3, "ecc_corrected")
    ranking = GpuRanking(node.metric)
    node.report(0, 9_000, 0)
    assert node.order(ranking) == [1, 0, 2]
    node.report(0, 9_000, 1)
    assert node.order(ranking) == [1, 2, 0]
