"""Log file for warnings and unexpected failures."""

from __future__ import annotations

import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path

from gswarm_tui.common.errors import printable
from gswarm_tui.common.paths import state_folder

MAX_BYTES = 4 * 1024 * 1024
"""A longer log is renamed to ``gswarm-tui.log.1``, which replaces the one before."""


class _PlainLines(logging.Formatter):
    """Formatter that spells out control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(printable, super().format(record).split("\n")))


def begin() -> Path:
    """Log warnings to a file, created with the first of them, and return its path. Raises UserError."""
    # A line that can't be written is lost, as on a full disk: the failure would end what logs, such as
    # asyncio's loop, or be printed over a screen.
    logging.raiseExceptions = False
    path = state_folder() / "gswarm-tui.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handler: logging.Handler = RotatingFileHandler(path, maxBytes=MAX_BYTES, backupCount=1, delay=True)
    except OSError:
        handler = logging.NullHandler()
    handler.setFormatter(_PlainLines("%(asctime)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    return path
