"""Where what nobody foresaw is found later."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from gswarm_tui.common.errors import printable


class _PlainLines(logging.Formatter):
    """A record's lines with nothing in them that a terminal would obey."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(printable, super().format(record).split("\n")))


def begin(environ: Mapping[str, str]) -> Path:
    """Let warnings go to a file, made with the first of them; which."""
    state = Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    path = state / "gswarm-tui" / "gswarm-tui.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handler: logging.Handler = logging.FileHandler(path, delay=True)
    except OSError:
        handler = logging.NullHandler()
    handler.setFormatter(_PlainLines("%(asctime)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    return path
