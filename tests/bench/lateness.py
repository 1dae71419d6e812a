"""Delay with which this machine wakes a sleeping thread, to judge lags measured on a busy machine."""

from __future__ import annotations

import math
import threading
import time
from types import TracebackType
from typing import Self

_SLEEP_S = 0.02


class Sleeper:
    """A thread that only sleeps; it ends with the context."""

    def __init__(self) -> None:
        self._late_s: list[float] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sleep, name="sleeper", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _sleep(self) -> None:
        while not self._done.is_set():
            due = time.monotonic() + _SLEEP_S
            time.sleep(_SLEEP_S)
            self._late_s.append(time.monotonic() - due)

    def late_ms(self) -> float:
        """Return the 95th percentile of its delays since the last call [ms]; NaN without any."""
        late, self._late_s = sorted(self._late_s), []
        return 1000 * late[int(0.95 * (len(late) - 1))] if late else math.nan
