"""What tells that a file changed."""

from __future__ import annotations

from pathlib import Path

Stamp = tuple[int, int, int] | None


def stamp(path: Path) -> Stamp:
    """When a file was changed, its size and its number; None where it can't be looked at."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
