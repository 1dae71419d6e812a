"""What was asked in SQL before, of any recording: the prompt's and the app's, in one file for its user alone.

Its form is that of prompt_toolkit's history: a comment with the time, then each line of a query after a plus.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

from gswarm_tui.common.errors import UserError
from gswarm_tui.common.paths import state_folder

_MOST_READ = 256 * 1024


def history_path() -> Path | None:
    """Return the history file; None for a user without a home folder."""
    try:
        return state_folder() / "sql-history"
    except UserError:
        return None


class QueryHistory:
    """The queries in a file; where it can't be read or written, or there is none, nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def read(self) -> list[str]:
        """The newest queries, oldest first."""
        if self._path is None:
            return []
        try:
            with self._path.open("rb") as file:
                file.seek(max(0, self._path.stat().st_size - _MOST_READ))
                lines = file.read().decode("utf-8", "replace").split("\n")
        except OSError:
            return []
        queries: list[list[str]] = [[]]
        for line in lines:
            if line.startswith("+"):
                queries[-1].append(line[1:])
            elif queries[-1]:
                queries.append([])
        return ["\n".join(query) for query in queries if query]

    def add(self, sql: str) -> None:
        """Put a query behind the others."""
        if self._path is None:
            return
        lines = "".join(f"+{line}\n" for line in sql.split("\n"))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_NOFOLLOW
            with os.fdopen(os.open(self._path, flags, 0o600), "wb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(f"\n# {datetime.now().astimezone()}\n{lines}".encode("utf-8", "replace"))
        except OSError:
            return
