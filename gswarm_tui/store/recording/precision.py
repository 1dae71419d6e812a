"""How exactly samples are kept: digits that a reading doesn't have would be most of the file.

NVML's power is good to 5 %, and a rate can't be better than the interval that it was taken over: the digits
behind are noise, which nothing compresses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def rounded(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Whole numbers; below 100 with one digit after the point, below 10 with two."""
    size = np.abs(values)
    steps = np.where(size < 100, np.where(size < 10, 100, 10), 1).astype(values.dtype)
    # NaN stands for NULL; what is too large for its column becomes NULL there.
    with np.errstate(over="ignore"):
        kept: npt.NDArray[Any] = np.rint(values * steps) / steps
    return kept
