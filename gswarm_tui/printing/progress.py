"""A line on standard error for what takes longer than a second, where somebody sees it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

AFTER_S = 1.0
_EVERY_S = 0.2
_ERASE = "\r\x1b[K"


class Progress:
    """``with Progress("reading run.duckdb") as progress``: shows the words with a share or the seconds.

    Nothing is shown before ``after_s``, nor where ``out`` is no terminal.
    """

    def __init__(
        self,
        words: str,
        *,
        out: TextIO | None = None,
        after_s: float = AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._words = words
        self._out = out if out is not None else sys.stderr
        self._after_s = after_s
        self._clock = clock
        self._share: float | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Progress:
        if self._out.isatty():
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hide()

    def hide(self) -> None:
        """Take the line away for good, as when the answer is about to be printed."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def tell(self, share: float) -> None:
        """So much is done, from 0 to 1; from any thread."""
        self._share = share

    def _run(self) -> None:
        began = self._clock()
        if self._ended.wait(self._after_s):
            return
        while not self._ended.wait(_EVERY_S):
            share = self._share
            how_far = f"{self._clock() - began:.0f} s" if share is None else f"{share:.0%}"
            self._out.write(f"{_ERASE}{self._words} … {how_far}")
            self._out.flush()
        self._out.write(_ERASE)
        self._out.flush()
