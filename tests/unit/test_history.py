"""History of samples from which plots and sparklines are drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gswarm_agent.metrics import CURVE_METRICS, GPU_COLUMNS, GPU_METRICS
from gswarm_tui.fleet.history import History, binned, empty_history


def add(history: History, ts: float, values: list[list[float]]) -> None:
    history.append(ts, None, np.array(values))


@given(st.integers(1, 20), st.lists(st.integers(0, 2000), max_size=60))
def test_history_holds_the_newest_frames_in_order(capacity: int, values: list[int]) -> None:
    history = History(capacity, 1, 1)
    for second, value in enumerate(values):
        add(history, second, [[value]])
    times, series = history.series(0, row=0)
    assert series.tolist() == values[-capacity:]
    assert times.tolist() == list(range(len(values)))[-capacity:]
    assert history.oldest == (times[0] if values else None)


@given(st.floats(0.01, 4e6), st.integers(0, 2**40))
def test_history_precision_suits_plots_and_energy_sums(number: float, energy_mj: int) -> None:
    history = History(3, 1, 2)
    for second, value in enumerate((number, np.nan, 1e15)):
        add(history, second, [[value, energy_mj]])
    _, tables = history.tables()
    np.testing.assert_allclose(tables[:, 0], [[one, energy_mj] for one in (number, np.nan, 1e15)], rtol=1e-7)
    for column in (0, 1):
        np.testing.assert_array_equal(history.series(column, row=0)[1], tables[:, 0, column])


def test_history_since_a_time_excludes_older_frames() -> None:
    history = History(10, 2, 1)
    for second in range(5):
        add(history, second, [[second], [10 * second]])
    times, series = history.series(0, since=3)
    assert times.tolist() == [3, 4]
    assert series.tolist() == [[3, 30], [4, 40]]


def test_bins_hold_means_and_keep_gaps() -> None:
    times = np.array([0.0, 0.5, 1.0, 3.0])
    values = np.array([10, 20, np.nan, 40], dtype=np.float32)
    bins = binned((times, values, np.ones(4, dtype=np.float32)), 0, 4, 4)
    assert bins[[0, 3]].tolist() == [15, 40]
    assert np.isnan(bins[[1, 2]]).all()


def test_samples_of_one_bin_count_by_their_intervals() -> None:
    """100 at 0.1 s, then one at 10 s; one after a gap counts only where it is alone."""
    times = np.array([*np.arange(1, 101) / 10, 20.0, 20.5, 31.0])
    values = np.array([90] * 100 + [0, 77, 50], dtype=np.float32)
    intervals = np.array([0.1] * 100 + [10, np.nan, np.nan], dtype=np.float32)
    assert binned((times, values, intervals), 0, 60, 2) == pytest.approx([45, 50], rel=1e-4)


def test_bins_of_several_gpus_skip_unmeasured_values() -> None:
    values = np.array([[10, np.nan], [np.nan, np.nan]], dtype=np.float32)
    bins = binned((np.array([0.0, 1.0]), values, np.ones(2, dtype=np.float32)), 0, 2, 2)
    assert bins[0] == 10
    assert np.isnan(bins[1])


def test_large_fleets_keep_shorter_curves_of_the_same_metrics() -> None:
    small, large = (empty_history(nodes, 8)[0] for nodes in (4, 1024))
    assert large.capacity < small.capacity
    for history in (small, large):
        history.append(10.0, 1.0, np.ones((8, len(GPU_COLUMNS))))
        kept = [int(np.isfinite(history.series(at, row=3)[1]).sum()) for at in range(len(GPU_COLUMNS))]
        assert kept == [int(metric in CURVE_METRICS) for metric in GPU_METRICS]
