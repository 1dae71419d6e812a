"""The commands after ``gswarm-tui``, with what help says of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A command and its line of help; ``module`` is its module where that can't have its name."""

    word: str
    help: str
    module: str = ""


COMMANDS = (
    Command("sql", "ask a recording in SQL, also one that is being written"),
    Command("sessions", "list the sessions of a recording"),
    Command("summary", "sum up a session: utilisation, idle phases, energy, memory"),
    Command("compare", "put runs side by side: speed-up, efficiency, energy, balance"),
    Command("export", "write a session as JSON, CSV or Parquet"),
    Command("import", "read an export, or a file of gswarm-profiler, into a recording", module="import_"),
    Command("mark", "mark this moment in the running recordings"),
    Command("replay", "play a recording in the screens"),
    Command("plot", "draw a session as PDF, PNG or SVG"),
    Command("report", "write a session's report as one HTML page"),
    Command("recover", "list recordings that were interrupted, or go on with one"),
)
WORDS = tuple(command.word for command in COMMANDS)
