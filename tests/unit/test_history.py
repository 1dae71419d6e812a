"""The ring that plots and sparklines are drawn from."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gswarm_tui.fleet.history import History, binned


@given(st.integers(1, 20), st.lists(st.floats(0, 100, width=32), max_size=60))
def test_it_holds_the_newest_readings_in_order(capacity: int, values: list[float]) -> None:
    history = History(capacity, 1, 1)
    for second, value in enumerate(values):
        history.room(float(second))[:] = value
    times, series = history.series(0, row=0)
    assert series.tolist() == values[-capacity:]
    assert times.tolist() == list(range(len(values)))[-capacity:]


def test_since_leaves_out_what_is_older() -> None:
    history = History(10, 2, 1)
    for second in range(5):
        history.room(second)[:] = [[second], [10 * second]]
    times, series = history.series(0, since=3)
    assert times.tolist() == [3, 4]
    assert series.tolist() == [[3, 30], [4, 40]]


def test_bins_are_means_and_a_hole_stays_a_hole() -> None:
    times = np.array([0.0, 0.5, 1.0, 3.0])
    values = np.array([10, 20, np.nan, 40], dtype=np.float32)
    bins = binned(times, values, 0, 4, 4)
    assert bins[[0, 3]].tolist() == [15, 40]
    assert np.isnan(bins[[1, 2]]).all()


def test_bins_of_several_gpus_leave_out_the_unmeasured_ones() -> None:
    values = np.array([[10, np.nan], [np.nan, np.nan]], dtype=np.float32)
    bins = binned(np.array([0.0, 1.0]), values, 0, 2, 2)
    assert bins[0] == 10
    assert np.isnan(bins[1])
