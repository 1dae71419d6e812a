"""Which recording a command is about: one that is named, the usual one, or the newest of this folder."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gswarm_tui.analysis import periods
from gswarm_tui.analysis.periods import Period
from gswarm_tui.common.errors import UserError, printable, quote
from gswarm_tui.control import registry
from gswarm_tui.control.client import running_heads
from gswarm_tui.control.source import RunningSource
from gswarm_tui.options.arguments import parse
from gswarm_tui.run import build
from gswarm_tui.store.errors import FileInUseError
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.querying.results import QuerySource

SUFFIX = ".duckdb"
SESSION_HELP = 'name or number, "recording 1" for all of it, run.duckdb:train (default: the newest)'
_PATIENCE_S = 1.5
"""A head that has just begun or is about to end holds its file a moment without answering for it."""


@dataclass(frozen=True)
class Reference:
    """A session as a person names it: ``train``, ``2``, ``run.duckdb`` or ``run.duckdb:train``."""

    file: Path | None
    name: str


def reference(word: str) -> Reference:
    """Take apart a session's name with its file. Raises UserError."""
    head, found, tail = word.rpartition(SUFFIX)
    if not found or (tail and not tail.startswith(":")):
        return Reference(None, word)
    if tail == ":":
        raise UserError(f"{quote(word)} names no session after the colon; leave it out for the newest one.")
    return Reference(Path(head + SUFFIX).expanduser(), tail.removeprefix(":"))


def which_file(db: Path | None, environ: Mapping[str, str]) -> Path:
    """The file that is named, else the one that settings name, the newest here, one that is being written.

    Raises UserError.
    """
    if db is not None:
        return db
    if (usual := parse([], environ).db) is not None and usual.exists():
        return usual
    folder = build.working_folder()
    here = [path for path in folder.glob(f"*{SUFFIX}") if path.is_file()]
    if here:
        return max(here, key=lambda path: path.stat().st_mtime_ns).relative_to(folder)
    if running := [head.path for head in running_heads(environ) if head.path is not None]:
        return running[0]
    raise UserError(f"there is no recording in {folder}; name one with --db, or go to its folder.")


def open_source(db: Path | None, environ: Mapping[str, str]) -> QuerySource:
    """The recording to ask, through its head while it is written; close it afterwards.

    Raises UserError, StoreError.
    """
    path = which_file(db, environ)
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        for head in running_heads(environ):
            if head.records(path):
                return RunningSource(head, path)
        try:
            return FileSource(path)
        except FileInUseError:
            if time.monotonic() > deadline:
                if said := registry.describe_remote_writer(path):
                    raise FileInUseError(said) from None
                raise
        time.sleep(0.1)


def session_named(source: QuerySource, name: str) -> Period:
    """The session of this name or number; of several with the name the newest, and that is told.

    Raises UserError, StoreError.
    """
    period = periods.find_period(source, name)
    if older := period.namesakes:
        numbers = ", ".join(map(str, older))
        other = "the other" if len(older) == 1 else "another"
        print(
            f"gswarm-tui: {len(older) + 1} sessions are named {printable(period.name)}; this is the newest, "
            f"number {period.session_id}. Name {other} by its number: {numbers}.",
            file=sys.stderr,
        )
    return period
