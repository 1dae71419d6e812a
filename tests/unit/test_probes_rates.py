"""Counters become rates, and what isn't growth doesn't."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gswarm_agent.probes.rates import Rates, SummedRates, Unwrapped

SECOND = 1_000_000_000


def test_a_rate_needs_two_readings() -> None:
    rates = Rates(2)
    assert rates.update([100, 0], 0) == [None, None]
    assert rates.update([350, 1], SECOND // 2) == [500, 2]


def test_a_counter_that_goes_backwards_has_no_rate_once() -> None:
    rates = Rates(2)
    rates.update([1000, 1000], 0)
    assert rates.update([10, 1010], SECOND) == [None, 10]
    assert rates.update([30, 1030], 2 * SECOND) == [20, 20]


def test_a_reading_without_an_answer_makes_the_interval_of_that_counter_longer() -> None:
    rates = Rates(3)
    rates.update([0, 0, None], 0)
    assert rates.update([None, 70, 0], SECOND) == [None, 70, None]
    assert rates.update([100, 100, 100], 2 * SECOND) == [50, 30, 100]
    assert rates.update([160, None, None], 3 * SECOND) == [60, None, None]
    assert rates.update([None, None, None], 4 * SECOND) == [None, None, None]
    assert rates.update([180, 400, 340], 5 * SECOND) == [10, 100, 80]


def test_two_readings_at_one_time_have_no_rate() -> None:
    rates = Rates(1)
    rates.update([0], SECOND)
    assert rates.update([100], SECOND) == [None]


def test_a_reset_forgets_the_last_reading_of_one_counter() -> None:
    rates = Rates(2)
    rates.update([0, 0], 0)
    rates.reset(1)
    assert rates.update([100, 100], SECOND) == [100, None]
    assert rates.update([200, 300], 2 * SECOND) == [100, 200]


@given(st.integers(0, 2**64), st.integers(0, 2**40), st.integers(1, 3600 * SECOND))
def test_a_rate_times_its_interval_is_the_growth(start: int, growth: int, interval: int) -> None:
    rates = Rates(1)
    rates.update([start], 5)
    (measured,) = rates.update([start + growth], 5 + interval)
    assert measured is not None
    assert measured * interval / SECOND == pytest.approx(growth)


def test_devices_are_summed_and_newcomers_count_from_their_second_reading() -> None:
    rates = SummedRates(2)
    assert rates.update({"a": (0, 0)}, 0) is None
    assert rates.update({"a": (10, 1), "b": (10**9, 10**9)}, SECOND) == (10, 1)
    assert rates.update({"a": (20, 2), "b": (10**9 + 5, 10**9)}, 2 * SECOND) == (15, 1)
    assert rates.update({"b": (10**9 + 6, 10**9 + 7)}, 3 * SECOND) == (1, 7)


def test_a_device_that_starts_anew_is_left_out_once() -> None:
    rates = SummedRates(1)
    rates.update({"a": (1000,), "b": (0,)}, 0)
    assert rates.update({"a": (0,), "b": (7,)}, SECOND) == (7,)
    assert rates.update({"a": (5,), "b": (14,)}, 2 * SECOND) == (12,)


def test_no_devices_have_rates_of_zero() -> None:
    rates = SummedRates(2)
    rates.update({}, 0)
    assert rates.update({}, SECOND) == (0, 0)


@given(st.integers(0, 2**70), st.lists(st.integers(0, 2**32 - 1), max_size=30))
def test_a_counter_of_32_bits_grows_on(start: int, steps: list[int]) -> None:
    counter = Unwrapped()
    truth = start
    first = counter.update(truth % 2**32, narrow=True)
    for step in steps:
        truth += step
        assert counter.update(truth % 2**32, narrow=True) - first == truth - start


def test_a_counter_declared_wider_is_found_out_when_it_wraps() -> None:
    counter = Unwrapped()
    counter.update(2**32 - 10, narrow=False)
    assert not counter.narrow
    assert counter.update(5, narrow=False) == 2**32 + 5
    assert counter.narrow


def test_a_wide_counter_that_falls_has_been_reset() -> None:
    counter = Unwrapped()
    counter.update(2**40, narrow=False)
    assert counter.update(5, narrow=False) == 5
    assert not counter.narrow
