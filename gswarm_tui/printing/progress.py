"""Progress line on standard error for work that takes longer than a second."""

from __future__ import annotations

import sys
import threading
import time
from typing import TextIO

AFTER_S = 1.0
_EVERY_S = 0.2
_ERASE = "\r\x1b[K"


class Progress:
    """Progress line: ``with Progress("reading run.duckdb")`` shows the text with a share or the seconds.

    Shows nothing before ``after_s``, or if ``out`` isn't a terminal.
    """

    def __init__(self, text: str, *, out: TextIO | None = None, after_s: float = AFTER_S) -> None:
        self._words = text
        self._out = out if out is not None else sys.stderr
        self._after_s = after_s
        self._share: float | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Progress:
        if self._out.isatty():
            self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.hide()

    def hide(self) -> None:
        """Erase the line and stop, before results are printed."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def report(self, share: float) -> None:
        """Set the share done, from 0 to 1; any thread may call it."""
        self._share = share

    def describe(self, text: str) -> None:
        """Replace the text; any thread may call it."""
        self._words = text

    def _run(self) -> None:
        began = time.monotonic()
        if self._ended.wait(self._after_s):
            return
        while not self._ended.wait(_EVERY_S):
            share = self._share
            done = f"{time.monotonic() - began:.0f} s" if share is None else f"{share:.0%}"
            self._out.write(f"{_ERASE}{self._words} … {done}")
            self._out.flush()
        self._out.write(_ERASE)
        self._out.flush()
