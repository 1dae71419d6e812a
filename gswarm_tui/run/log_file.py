"""Log file for warnings and unexpected failures."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

from gswarm_tui.common.errors import printable
from gswarm_tui.common.paths import state_folder


class _PlainLines(logging.Formatter):
    """Formatter that spells out control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(printable, super().format(record).split("\n")))


class _LogFile(logging.FileHandler):
    """Log file that loses a line if it can't be opened, as on a full disk or with too many open files.

    The failure would else end whatever logs, such as asyncio's loop.
    """

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            super().emit(record)


def begin() -> Path:
    """Log warnings to a file, created with the first of them, and return its path. Raises UserError."""
    path = state_folder() / "gswarm-tui.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handler: logging.Handler = _LogFile(path, delay=True)
    except OSError:
        handler = logging.NullHandler()
    handler.setFormatter(_PlainLines("%(asctime)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    return path
