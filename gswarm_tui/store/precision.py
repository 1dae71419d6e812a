"""How exactly samples are kept: digits that a reading doesn't have would be most of the file.

NVML's power is good to 5 %, and a rate can't be better than the interval that it was taken over: the digits
behind are noise, which nothing compresses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_PROMPT_MS = 5.0


def rounded(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Whole numbers; below 100 with one digit after the point, below 10 with two."""
    size = np.abs(values)
    steps = np.where(size < 100, np.where(size < 10, 100, 10), 1).astype(values.dtype)
    # NaN stands for NULL; what is too large for its column becomes NULL there.
    with np.errstate(over="ignore"):
        kept: npt.NDArray[Any] = np.rint(values * steps) / steps
    return kept


def sample_us(ts: float, late_ms: float) -> int:
    """The time of a reading (Unix seconds) as it is stored: Unix microseconds, in whole milliseconds.

    A reading that began less than 5 ms after its deadline, ``late_ms``, counts as taken at that: then times
    are as regular as the schedule, and those of all nodes with a set clock are the same.
    """
    prompt = 0 <= late_ms < _PROMPT_MS
    return round(ts * 1000 - (late_ms if prompt else 0)) * 1000
