"""Driver of a screen in a browser: Textual's own, which ends with the web server and writes pieces whole."""

from __future__ import annotations

import os
import signal
from typing import Any

from textual.drivers.web_driver import WebDriver


class BrowserDriver(WebDriver):
    """Textual's driver for browsers, on pipes to ``gswarm-tui web``.

    Textual's own driver runs on without a reader when the web server is killed.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        whole: Any = self._write_whole
        self._write = whole

    def run_input_thread(self) -> None:
        """Read keys, and end like a closed terminal when the web server has gone."""
        super().run_input_thread()
        if not self.exit_event.is_set():
            os.kill(os.getpid(), signal.SIGHUP)

    def _write_whole(self, data: bytes) -> None:
        """Write all of a packet; a signal may interrupt writing, and a reader that has gone is no error."""
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self.fileno, left) :]
        except BrokenPipeError:
            return
