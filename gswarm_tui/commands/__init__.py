"""The words after ``gswarm-tui`` that do one thing and end: each is a module with ``run``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import cast

from gswarm_agent.frozen import dataclass


@dataclass(frozen=True)
class Command:
    """A word and what it does, for the help; ``module`` is its module where that can't have its name."""

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
)
WORDS = tuple(command.word for command in COMMANDS)


def run(word: str, words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Carry out one of ``WORDS`` with the words after it; the exit status.

    Raises:
        UserError: they make no sense, or what they name isn't there.
        StoreError: a file can't be read or written.
    """
    name = next(command.module for command in COMMANDS if command.word == word) or word
    module = importlib.import_module(f"gswarm_tui.commands.{name}")
    return cast(int, module.run(words, environ))
