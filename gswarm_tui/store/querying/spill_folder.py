"""Temporary folder for queries that need more than memory."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from gswarm_tui.store.duckdb_internals import Settings

_SPILL = "gswarm-tui-spill-"


class SpillFolder:
    """A temporary folder with a random name, for queries that need more than memory.

    It may fill half of the free space there, at most ``max_bytes``. It is locked while this process lives;
    an unlocked one of this user was left by a process that was killed, and is removed.
    """

    def __init__(self, max_bytes: int = 1 << 40) -> None:
        try:
            parent = Path(tempfile.gettempdir())
            self._bytes = min(max_bytes, shutil.disk_usage(parent).free // 2)
        except FileNotFoundError:  # all are full; only queries that need one fail
            parent, self._bytes = Path("/tmp"), 0  # noqa: S108
        for left in parent.glob(f"{_SPILL}*"):
            if (lock := _lock(left)) is not None:
                shutil.rmtree(left, ignore_errors=True)
                os.close(lock)
        self._path = parent / f"{_SPILL}{secrets.token_hex(8)}"
        self._held: int | None = None
        unlocked = parent / f".{self._path.name}"  # until it has its name, no other process removes it
        with suppress(OSError):  # DuckDB reports it when a query needs the folder
            unlocked.mkdir(mode=0o700)
            self._held = _lock(unlocked)
            unlocked.rename(self._path)

    def settings(self) -> Settings:
        """Return the settings with which DuckDB connects."""
        return {"temp_directory": str(self._path), "max_temp_directory_size": f"{self._bytes} bytes"}

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._path, ignore_errors=True)
        if self._held is not None:
            os.close(self._held)
            self._held = None


def _lock(folder: Path) -> int | None:
    """Lock a folder of this user's own; return its descriptor, None if another process holds it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if os.fstat(descriptor).st_uid == os.getuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None
