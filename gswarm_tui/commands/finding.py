"""Which recording a command is about: one that is named, the usual one, or the newest of this folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gswarm_tui import parts
from gswarm_tui.arguments import parse
from gswarm_tui.errors import UserError, quote
from gswarm_tui.store.source import FileSource, Source

SUFFIX = ".duckdb"


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
    """The file that is named, else the one that settings name, else the newest here. Raises UserError."""
    if db is not None:
        return db
    if (usual := parse([], environ).db) is not None and usual.exists():
        return usual
    folder = parts.working_folder()
    here = [path for path in folder.glob(f"*{SUFFIX}") if path.is_file()]
    if not here:
        raise UserError(f"there is no recording in {folder}; name one with --db, or go to its folder.")
    return max(here, key=lambda path: path.stat().st_mtime_ns)


def open_source(db: Path | None, environ: Mapping[str, str]) -> Source:
    """The recording to ask; close it afterwards. Raises UserError, StoreError."""
    return FileSource(which_file(db, environ))
