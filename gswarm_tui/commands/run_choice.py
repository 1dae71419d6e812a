"""Choice of several runs: recordings by name or pattern, each with its session."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from gswarm_tui.analysis import periods
from gswarm_tui.analysis.comparison import ComparedRun, load_run, without_copies
from gswarm_tui.commands.output_files import check_output_file
from gswarm_tui.commands.recording_choice import SessionReference, choose_session, open_source, parse_words
from gswarm_tui.common.errors import UserError, print_notice
from gswarm_tui.common.paths import holds_runs, is_pattern, matching
from gswarm_tui.common.quantities import plural
from gswarm_tui.printing.progress import Progress
from gswarm_tui.store.errors import FileInUseError, RunExistsError, StoreError
from gswarm_tui.store.querying.many_files import MOST_FILES, ManyFiles
from gswarm_tui.store.querying.results import QuerySource

T = TypeVar("T")

MOST_SKIPPED = 5
"""Skipped files that messages name; the others are counted."""


def expand(words: Sequence[str], db: Path | None = None) -> list[SessionReference]:
    """Return the runs that words name, with the files that match their patterns. Raises UserError."""
    found: dict[SessionReference, None] = {}
    for word in words:
        run = parse_words([word], None)
        if run.file is None or not is_pattern(run.file):
            found[replace(run, file=run.file or db)] = None
        else:
            found |= dict.fromkeys(replace(run, file=path, matched=True) for path in matching(run.file))
    return list(found)


def expand_several(words: Sequence[str]) -> list[SessionReference]:
    """Return the runs of a pattern or of several files; none for words that name one session.

    Raises UserError.
    """
    files = [file for word in words if (file := parse_words([word], None).file) is not None]
    return expand(words) if len(files) > 1 or any(map(is_pattern, files)) else []


def load_runs(
    runs: Sequence[SessionReference], environ: Mapping[str, str], *outputs: Path | None, force: bool
) -> list[ComparedRun]:
    """Return the figures of runs, labelled distinctly, as ``use_each`` does.

    Refuses ``outputs`` that exist, without ``force``, or are recordings.
    """

    def load(source: QuerySource, run: SessionReference) -> ComparedRun:
        for path in outputs:
            check_output_file(path, force=force, recording=source.path)
        period = (periods.find_period if run.matched else choose_session)(source, run.name)
        return load_run(source, period, period.name)

    return with_distinct_labels(use_each(runs, environ, load, "summarising the runs"))


def print_copies(runs: Sequence[ComparedRun]) -> None:
    """Print a notice if runs have copies, which a line for all of them leaves out."""
    if copies := len(runs) - len(without_copies(runs)):
        print_notice(
            f"{copies:,} of {len(runs):,} lines repeat a run; the line for all counts each run once."
        )


def with_distinct_labels(runs: Sequence[ComparedRun]) -> list[ComparedRun]:
    """Label runs distinctly: by session, by file, by both, else with a number."""
    both = [f"{Path(run.file).stem}:{run.label}" for run in runs]
    for labels in ([run.label for run in runs], [Path(run.file).stem for run in runs], both):
        if len(set(labels)) == len(labels):
            break
    else:
        labels = [
            f"{name} #{both[: at + 1].count(name)}" if both.count(name) > 1 else name
            for at, name in enumerate(both)
        ]
    return [replace(run, label=name) for run, name in zip(runs, labels, strict=True)]


def use_each(
    runs: Sequence[SessionReference],
    environ: Mapping[str, str],
    use: Callable[[QuerySource, SessionReference], T],
    doing: str,
) -> list[T]:
    """Return what ``use`` makes of each run. Files of patterns that can't be used are named and skipped.

    Raises UserError, StoreError.
    """
    used: list[T] = []
    skipped: list[UserError] = []
    with Progress(doing) as progress:
        for number, run in enumerate(runs):
            progress.report(number / len(runs))
            try:
                with contextlib.closing(open_source(run.file, environ)) as source:
                    used.append(use(source, run))
            except UserError as error:
                if not run.matched:
                    raise
                skipped.append(error)
    print_skipped(skipped, len(runs))
    return used


def open_together(paths: Sequence[Path]) -> QuerySource:
    """Open recordings, each file once, as one that has a column ``run``. Raises UserError, StoreError."""
    named = {os.path.realpath(file): (file, is_pattern(path)) for path in paths for file in matching(path)}
    matched = dict(named.values())
    if folder := next((path for path in paths if holds_runs(path)), None):
        raise UserError(
            f"{folder} is a Parquet dataset, which DuckDB reads itself: FROM "
            f"read_parquet('{folder}/gpu_minutes/**/*.parquet', hive_partitioning = true)."
        )
    if len(matched) > MOST_FILES:
        raise UserError(
            f"{len(matched):,} recordings match, but sql reads at most {MOST_FILES} at once; add them to one "
            "dataset with gswarm-tui export --append, which DuckDB, polars, Dask and Spark read."
        )
    skipped: list[UserError] = []

    def skip(path: Path, error: StoreError) -> None:
        if isinstance(error, FileInUseError):
            error = FileInUseError(f"{path} is still recorded or in use, so query it alone")
        if not matched[path]:
            raise error
        skipped.append(error)

    stems = Counter(path.stem for path in matched)
    runs = {path.stem if stems[path.stem] == 1 else str(path): path for path in matched}
    with Progress(f"opening {plural(len(runs), 'recording')}") as progress:
        source = ManyFiles(runs, skip, progress.report)
    with contextlib.ExitStack() as stack:
        stack.callback(source.close)
        print_skipped(skipped, len(runs))
        stack.pop_all()
    return source


def print_skipped(errors: Sequence[UserError], files: int) -> None:
    """Print the first reasons why files are left out. Raises the first one if no file was ever used."""
    if errors and len(errors) == files and not any(isinstance(error, RunExistsError) for error in errors):
        raise errors[0]
    for error in errors[:MOST_SKIPPED]:
        print_notice(f"skipped: {str(error).partition('; ')[0].rstrip('.')}.")
    if len(errors) > MOST_SKIPPED:
        print_notice(f"skipped {plural(len(errors) - MOST_SKIPPED, 'more file')}.")
