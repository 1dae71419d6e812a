"""Who has a file open that DuckDB lets only one program write."""

from __future__ import annotations

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
