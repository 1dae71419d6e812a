"""Choice of a command's recording and session: named, preset, or the newest in this folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gswarm_tui.analysis import periods
from gswarm_tui.analysis.periods import Period
from gswarm_tui.common.errors import UserError, print_notice, quote
from gswarm_tui.common.paths import holds_runs, working_folder
from gswarm_tui.common.quantities import first_of
from gswarm_tui.control import registry
from gswarm_tui.control.client import running_heads
from gswarm_tui.control.recorder_source import RecorderSource
from gswarm_tui.options.arguments import CommandParser, parse
from gswarm_tui.runs.line import RUN_PREFIX
from gswarm_tui.store.errors import QUERYABLE, FileInUseError
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.store.recording.files import has_log

SUFFIX = ".duckdb"
MOST_NAMED = 6
"""Sessions that a message names."""
_PATIENCE_S = 1.5
"""A recorder that is starting or ending holds its file for a moment without answering."""


@dataclass(frozen=True)
class SessionReference:
    """Session as the user names it: ``train``, ``2``, ``run.duckdb``, ``run.duckdb:train`` (or spaced).

    ``matched`` if a pattern chose the file.
    """

    file: Path | None
    name: str
    matched: bool = False


def find_recording_file(db: Path | None, environ: Mapping[str, str]) -> Path:
    """Return the named file, else the preset one, the newest here, or one that a recorder is writing.

    Raises UserError.
    """
    if db is not None:
        return db
    if (usual := parse([], environ).db) is not None and usual.exists():
        return usual
    folder = working_folder()
    files = [path for path in folder.glob(f"*{SUFFIX}") if path.is_file()]
    if files:
        return max(files, key=lambda path: path.stat().st_mtime_ns).relative_to(folder)
    if running := [head.path for head in running_heads(environ) if head.path is not None]:
        return running[0]
    raise UserError(f"no recording in {folder}; name one with --db, or change to its folder.")


def open_source(db: Path | None, environ: Mapping[str, str], *, for_people: bool = False) -> QuerySource:
    """Open the recording, through its recorder while it is written; close it afterwards.

    A finished file has the views for queries that people write only with ``for_people``.
    Raises UserError, StoreError.
    """
    path = find_recording_file(db, environ)
    if path.name.startswith(RUN_PREFIX) and path.is_dir():
        from gswarm_tui.store.transfer.dataset_source import DatasetSource  # with numpy

        return DatasetSource(path)
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        for head in running_heads(environ):
            if head.records(path):
                if head.hangs:
                    raise FileInUseError(head.describe_hang())
                return RecorderSource.of_head(head, path)
        try:
            source = FileSource(path, for_people=for_people)
            if has_log(path):
                print_notice(
                    f"{path} wasn't closed and is read with its write-ahead log, {path.name}.wal; "
                    "if that was cut short, the last rows are missing."
                )
            return source
        except FileInUseError as error:
            if time.monotonic() > deadline:
                elsewhere = registry.describe_remote_writer(path)
                why = str(error).replace(QUERYABLE, "it doesn't answer")
                raise FileInUseError(elsewhere or why) from None
        time.sleep(0.1)


def choose_session(source: QuerySource, name: str) -> Period:
    """Return the session of this name or number, or the newest; a notice names the others to choose from.

    Raises UserError, StoreError.
    """
    period = periods.find_period(source, name)
    if older := period.namesakes:
        numbers = ", ".join(map(str, older))
        other = "the other" if len(older) == 1 else "another"
        print_notice(
            f"{len(older) + 1} sessions are named {period.name}; using the newest, "
            f"number {period.session_id}. Choose {other} by its number: {numbers}."
        )
    if period.others:
        count = len(period.others) + 1
        others = first_of(period.others, MOST_NAMED, " (gswarm-tui sessions lists them)")
        print_notice(
            f"{source.path} has {count:,} sessions; using the newest, {period.name}. "
            f"Name another to use it: {others}."
        )
    return period


def require_samples(source: QuerySource, period: Period, command: str) -> None:
    """Refuse a command that needs the samples of a thinned recording. Raises UserError."""
    if period.thinned_at is not None:
        raise UserError(
            f"{source.path} was thinned on {period.thinned_at:%Y-%m-%d}, so {command} has no samples of "
            f"{period.name}; summary, runs and compare have its figures."
        )


def note_thinned(name: object, dates: Iterable[datetime | None]) -> None:
    """Print a notice if one of these dates says that recordings of ``name`` were thinned."""
    if known := [at for at in dates if at is not None]:
        print_notice(
            f"{name} was thinned on {max(known):%Y-%m-%d}: it has sums by minute, and samples only at the "
            "start and end of recordings and sessions."
        )


def add_session(parser: CommandParser, usual: str = "newest") -> None:
    """Add the positional argument SESSION, words of ``open_session``; the help names the ``usual`` one."""
    text = f'name, number, "recording 1" for a whole one, or run.duckdb:train (default: {usual})'
    parser.add_argument("session", nargs="*", metavar="SESSION", help=text)


def parse_words(words: Sequence[str], db: Path | None) -> SessionReference:
    """Parse the words that name a session, with its file or with ``db``. Raises UserError."""
    word = " ".join(words)
    # A script passes an empty name if its variable isn't set.
    if words and not word.strip():
        raise UserError("the name of the session is empty; give a name, or leave it out.")
    head, found, tail = word.rpartition(SUFFIX)
    if not found and db is None and (word.endswith(".parquet") or holds_runs(Path(word))):
        return SessionReference(Path(word).expanduser(), "")
    if not found or (tail and tail[0] not in ": "):
        return SessionReference(db, word)
    if tail == ":":
        raise UserError(f"{quote(word)} names no session; remove the colon for the newest one.")
    if db is not None:
        raise UserError(f"{quote(word)} already names a file; remove --db.")
    return SessionReference(Path(head + SUFFIX).expanduser(), tail[1:])


@contextlib.contextmanager
def open_session(
    words: Sequence[str], db: Path | None, environ: Mapping[str, str]
) -> Iterator[tuple[QuerySource, Period]]:
    """Open ``db``, else the recording that the words name, and choose the session.

    Raises UserError, StoreError.
    """
    named = parse_words(words, db)
    with contextlib.closing(open_source(named.file, environ)) as source:
        yield source, choose_session(source, named.name)
