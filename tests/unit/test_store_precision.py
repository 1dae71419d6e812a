"""Rounding of stored numbers: three digits are kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gswarm_tui.fleet.frame_values import as_recorded


@pytest.mark.parametrize("precision", [np.float32, np.float64])
def test_rounding_keeps_three_digits(
    precision: type,
) -> None:
    values: npt.NDArray[Any] = np.array(
        [0, 0.004, 5.237, 9.996, 41.37, -41.37, 99.96, 120.3, 690.47, 186_423.7], precision
    )
    expected = [0, 0, 5.24, 10, 41.4, -41.4, 100, 120, 690, 186_424]
    np.testing.assert_array_equal(as_recorded(values), np.array(expected, precision))


def test_rounding_nan_and_infinity_gives_no_warning() -> None:
    values = as_recorded(np.array([np.nan, np.inf, -np.inf, 1e308]))
    np.testing.assert_array_equal(values, [np.nan, np.inf, -np.inf, 1e308])


@given(st.floats(-1e6, 1e6))
def test_rounding_changes_at_most_half_a_percent_or_half_a_hundredth(value: float) -> None:
    assert abs(as_recorded(np.array([value]))[0] - value) <= max(abs(value) * 0.005001, 0.005001)
