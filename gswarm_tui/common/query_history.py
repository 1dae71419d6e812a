"""History of SQL queries of all recordings, in a file that only its user can read.

Each query is a comment with the time, then its lines, each after a plus sign.
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
    """Queries in a file; without a path, or where the file can't be used, the history stays empty."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def read(self) -> list[str]:
        """Return the newest queries, oldest first."""
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
        """Append a query."""
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
