"""Plot and report of a session, written by their commands beside the running app."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from gswarm_tui.common.errors import UserError
from gswarm_tui.common.paths import file_name
from gswarm_tui.common.processes import last_line, own_command, run_program

KINDS = (("plot", ".pdf"), ("report", ".html"))


def write_session_files(recording: Path, session: str, name: str) -> tuple[str, ...]:
    """Write a session's plot and report into the current folder and return the names of the files.

    Drawing takes seconds and 100 MiB, so other processes do it. ``session`` is the session's name or number,
    ``name`` names the files; a number after it avoids existing ones. Raises UserError with the message of a
    command that failed.
    """
    first = file_name(name)
    stems = (first if number == 1 else f"{first}-{number}" for number in count(1))
    stem = next(each for each in stems if not any(Path(f"{each}{suffix}").exists() for _, suffix in KINDS))
    files = tuple(f"{stem}{suffix}" for _, suffix in KINDS)
    for (word, _), file in zip(KINDS, files, strict=True):
        done = run_program(own_command(word, f"--db={recording}", "-o", f"./{file}", "--", session))
        if done.returncode:
            raise UserError(last_line(done.stderr) or f"{word} ended with status {done.returncode}")
    return files
