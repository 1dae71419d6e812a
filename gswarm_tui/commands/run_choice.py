"""Choice of several runs: recordings by name or pattern, each with its session."""

from __future__ import annotations

import contextlib
import glob
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gswarm_tui.analysis import periods
from gswarm_tui.analysis.periods import Period
from gswarm_tui.commands.recording_choice import choose_session, open_source, parse_words
from gswarm_tui.common.errors import UserError, print_notice, quote
from gswarm_tui.common.quantities import plural
from gswarm_tui.printing.progress import Progress
from gswarm_tui.store.querying.results import QuerySource

T = TypeVar("T")

MOST_SKIPPED = 5
"""Skipped files that messages name; the others are counted."""


@dataclass(frozen=True)
class ChosenRun:
    """A session, empty for the newest, of a file; ``matched`` if a pattern and not its name chose it."""

    file: Path | None
    session: str
    matched: bool = False


def expand(words: Sequence[str], db: Path | None = None) -> list[ChosenRun]:
    """Return the runs that words name, with the files that match their patterns. Raises UserError."""
    found: dict[ChosenRun, None] = {}
    for word in words:
        named = parse_words([word], None)
        run = ChosenRun(named.file or db, named.name)
        if named.file is None or not re.search(r"[*?[]", str(named.file)) or named.file.exists():
            found[run] = None
            continue
        paths = sorted(glob.glob(str(named.file), recursive=True))  # noqa: PTH207 (patterns may be absolute)
        if not paths:
            raise UserError(f"no file matches {quote(str(named.file))}; name others.")
        found |= dict.fromkeys(ChosenRun(Path(path), named.name, matched=True) for path in paths)
    return list(found)


def load_each(
    runs: Sequence[ChosenRun],
    environ: Mapping[str, str],
    load: Callable[[QuerySource, Period], T],
    doing: str,
) -> list[T]:
    """Return what ``load`` makes of each run. Files of patterns that can't be used are named and skipped.

    Raises UserError, StoreError.
    """
    loaded: list[T] = []
    with Progress(doing) as progress, skipping() as skip:
        for number, run in enumerate(runs):
            progress.report(number / len(runs))
            with skip(matched=run.matched), contextlib.closing(open_source(run.file, environ)) as source:
                choose = periods.find_period if run.matched else choose_session
                loaded.append(load(source, choose(source, run.session)))
    return loaded


@contextlib.contextmanager
def skipping() -> Iterator[Callable[..., contextlib.AbstractContextManager[None]]]:
    """Collect the errors of files, and print the first ones when all have been read.

    Raises the first error if every file fails.
    """
    errors: list[UserError] = []
    used = 0

    @contextlib.contextmanager
    def skip(*, matched: bool) -> Iterator[None]:
        nonlocal used
        try:
            yield
            used += 1
        except UserError as error:
            if not matched:
                raise
            errors.append(error)

    yield skip
    if errors and not used:
        raise errors[0]
    for error in errors[:MOST_SKIPPED]:
        print_notice(f"skipped: {str(error).partition('; ')[0].rstrip('.')}.")
    if len(errors) > MOST_SKIPPED:
        print_notice(f"skipped {plural(len(errors) - MOST_SKIPPED, 'more file')}.")
