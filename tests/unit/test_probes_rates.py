"""Tests of rates from counters, of of sums over devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gswarm_agent.probes.rates import Rate, SummedRates

SECOND = 1_000_000_000


def rates(*readings: tuple[int | None, float]) -> list[float | None]:
    """Return the rates at readings of one counter: (value, time in seconds)."""
    rate = Rate()
    return [rate.update(value, round(at * SECOND)) for value, at in readings]


def test_a_rate_needs_two_readings() -> None:
    assert rates((100, 0), (350, 0.5)) == [None, 500]


def test_a_counter_that_falls_has_no_rate_once() -> None:
    assert rates((1000, 0), (10, 1), (30, 2)) == [None, None, 20]


def test_a_reading_without_a_value_lengthens_the_interval() -> None:
    assert rates((0, 0), (None, 1), (100, 2), (160, 3), (None, 4), (180, 5)) == [None, None, 50, 60, None, 10]
    assert rates((None, 0), (0, 1), (100, 2)) == [None, None, 100]


def test_two_readings_at_one_time_have_no_rate() -> None:
    assert rates((0, 1), (100, 1)) == [None, None]


def test_a_reset_forgets_the_last_reading() -> None:
    rate = Rate()
    rate.update(0, 0)
    rate.reset()
    assert rate.update(100, SECOND) is None
    assert rate.update(300, 2 * SECOND) == 200


@given(st.integers(0, 2**64), st.integers(0, 2**40), st.integers(1, 3600 * SECOND))
def test_a_rate_times_its_interval_is_the_growth(start: int, growth: int, interval: int) -> None:
    rate = Rate()
    rate.update(start, 5)
    measured = rate.update(start + growth, 5 + interval)
    assert measured is not None
    assert measured * interval / SECOND == pytest.approx(growth)


def test_a_new_device_counts_from_its_second_reading() -> None:
    rates = SummedRates(2)
    assert rates.update({"a": (0, 0)}, 0) is None
    assert rates.update({"a": (10, 1), "b": (10**9, 10**9)}, SECOND) == (10, 1)
    assert rates.update({"a": (20, 2), "b": (10**9 + 5, 10**9)}, 2 * SECOND) == (15, 1)
    assert rates.update({"b": (10**9 + 6, 10**9 + 7)}, 3 * SECOND) == (1, 7)


def test_a_device_whose_counter_restarts_is_left_out_once() -> None:
    rates = SummedRates(1)
    rates.update({"a": (1000,), "b": (0,)}, 0)
    assert rates.update({"a": (0,), "b": (7,)}, SECOND) == (7,)
    assert rates.update({"a": (5,), "b": (14,)}, 2 * SECOND) == (12,)


def test_rates_without_devices_are_zero() -> None:
    rates = SummedRates(2)
    rates.update({}, 0)
    assert rates.update({}, SECOND) == (0, 0)
