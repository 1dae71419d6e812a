"""Where queries put what doesn't fit into memory, and how much of it."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from pathlib import Path


class Scratch:
    """A folder among those for temporary files that DuckDB makes when it needs it; nobody guesses its name.

    It may take half of what is free there, at most ``most_bytes``.
    """

    def __init__(self, most_bytes: int = 1 << 40) -> None:
        above = Path(tempfile.gettempdir())
        self._path = above / f"gswarm-tui-{secrets.token_hex(8)}"
        self._bytes = min(most_bytes, shutil.disk_usage(above).free // 2)

    def settings(self) -> dict[str, str | bool | int | float | list[str]]:
        """What tells DuckDB so when it connects."""
        return {"temp_directory": str(self._path), "max_temp_directory_size": f"{self._bytes} bytes"}

    def remove(self) -> None:
        """Remove what is left of it."""
        shutil.rmtree(self._path, ignore_errors=True)
