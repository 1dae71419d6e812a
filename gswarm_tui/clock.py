"""The head's own clock."""

from __future__ import annotations

import time
from collections.abc import Callable


def steady_wall() -> Callable[[], float]:
    """A clock of Unix seconds that runs on from now whatever is done to the machine's.

    It counts while the machine sleeps, too. Times of one run keep their order and their distances thus.
    """
    ahead = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return lambda: time.clock_gettime(time.CLOCK_BOOTTIME) + ahead
