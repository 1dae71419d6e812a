"""Errors of a recording file, as sentences. Imports quickly, because every reader needs it."""

from __future__ import annotations

import re
from pathlib import Path, PurePath

OURS = {"gswarm-tui", "gswarm_tui"}


def in_use(program: str, pid: int, proc: Path = Path("/proc")) -> str:
    """That a process has the file open, and what to do, as a clause; a gswarm-tui can be asked meanwhile."""
    if _is_ours(proc / str(pid) / "cmdline"):
        holder, instead = "gswarm-tui", "; `gswarm-tui sql` asks it while it records"
    else:
        holder, instead = program, ""
    return f"is in use by {holder}, process {pid}{instead}; end that, or name another file with --db"


def _is_ours(command_line: Path) -> bool:
    """Whether it was started as ``gswarm-tui …`` or ``python -m gswarm_tui …``."""
    try:
        words = command_line.read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    started = [PurePath(word.removesuffix("/__main__.py")).name for word in words[:3]]
    return not OURS.isdisjoint(started)


class StoreError(Exception):
    """The file can't be read or written; the message is one sentence that says why and what to do."""


class FileInUseError(StoreError):
    """Another program has the file open."""


_HELD = r"Conflicting lock is held in (\S+) \(PID (\d+)"
_LOCKED = "Could not set lock|Conflicting lock"
_REASONS = (
    (
        _LOCKED,
        "is in use by another program; end that, or name another file with --db",
    ),
    (r"already attached|Unique file handle", "is already open in this program"),
    (
        r"not a valid DuckDB database|Extension .* not found|Cannot launch in-memory database",
        "is not a DuckDB file; name another file with --db",
    ),
    (
        r"Could not read enough bytes|Corrupt database file",
        "is damaged, or only a part of it was copied; take another copy, or name another file with --db",
    ),
    (
        r"can only read|newer version|storage version greater",
        "was made by a newer DuckDB; update duckdb, or name another file with --db",
    ),
    (r"No space left|quota exceeded", "can't be written because its disk is full; free some space"),
    (r"File too large", "can't grow because of a limit on the size of files (ulimit -f)"),
    (
        r"Read-only file system|Permission denied|Operation not permitted",
        "can't be written because its folder is read-only for you; name another file with --db",
    ),
    (
        r"No such file",
        "can't be written because its folder isn't there; make it, or name another file with --db",
    ),
    (r"Is a directory", "is a folder; name a file with --db"),
)


def not_opened(error: Exception, path: Path) -> StoreError:
    """Why DuckDB didn't open the file."""
    return (FileInUseError if re.search(_LOCKED, str(error)) else StoreError)(explain(error, path))


def explain(error: Exception, path: Path) -> str:
    """DuckDB's error as one sentence about the file."""
    text = str(error)
    if held := re.search(_HELD, text, re.IGNORECASE):
        return f"{path} {in_use(held[1], int(held[2]))}"
    for pattern, sentence in _REASONS:
        if re.search(pattern, text, re.IGNORECASE):
            return f"{path} {sentence}"
    return f"{path} can't be used: {text.strip().splitlines()[0]}"
