"""Reading of many recordings on Dask's workers, with ``--dask``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from gswarm_tui.analysis import periods
from gswarm_tui.analysis.comparison import ComparedRun, load_run
from gswarm_tui.commands.output_files import check_output_file
from gswarm_tui.commands.recording_choice import open_source
from gswarm_tui.commands.run_choice import expand, print_skipped, with_distinct_labels
from gswarm_tui.common.errors import UserError
from gswarm_tui.common.paths import working_folder
from gswarm_tui.options.arguments import CommandParser
from gswarm_tui.options.config import load_dask
from gswarm_tui.printing.formats import OutputOptions
from gswarm_tui.printing.progress import Progress
from gswarm_tui.runs.dask_work import WantedRun, connected, work_on

T = TypeVar("T")


def add_dask(parser: CommandParser) -> None:
    """Add the option for ``ask_workers``."""
    text = "read files on Dask's workers: tcp://HOST:PORT, or slurm to start some"
    parser.add_argument("--dask", metavar="ADDRESS", help=text)


def ask_workers(
    where: str,
    function: Callable[[WantedRun], T],
    listed: Callable[[], Iterable[WantedRun]],
    environ: Mapping[str, str],
    doing: str,
) -> list[T]:
    """Return what a function makes of the runs that workers list; name those that they can't read.

    Raises UserError.
    """
    with connected(where, load_dask(environ)) as client, Progress(doing) as progress:
        answers = work_on(client, function, listed, progress.report)
    print_skipped([UserError(one.why) for one in answers if one.value is None], len(answers))
    return [one.value for one in answers if one.value is not None]


def absolute(words: Iterable[str]) -> list[str]:
    """Return words that name files from everywhere, as workers have other working folders."""
    return [os.path.normpath(working_folder() / Path(word).expanduser()) for word in words]


def load_by_dask(
    where: str, words: Sequence[str], form: OutputOptions, environ: Mapping[str, str]
) -> list[ComparedRun]:
    """Return the figures of each run that workers see, labelled distinctly; words are those of ``expand``.

    Raises UserError.
    """
    check_output_file(form.out, force=form.force)
    if not words:
        raise UserError("--dask needs files, such as 'runs/*.duckdb'.")
    listed = partial(_wanted, absolute(words))
    runs = ask_workers(where, _load, listed, environ, "summarising the runs")
    if not any(Path(word).expanduser().is_absolute() for word in words):
        runs = [replace(run, file=os.path.relpath(run.file)) for run in runs]
    return with_distinct_labels(runs)


def _wanted(words: Sequence[str]) -> Iterator[WantedRun]:
    """Yield the runs of words that are here; of a pattern without a match, the pattern. Runs on a worker."""
    for word in words:
        try:
            yield from (WantedRun(run.file or Path(word), run.name) for run in expand([word]))
        except UserError:
            yield WantedRun(Path(word))


def _load(run: WantedRun) -> ComparedRun:
    """Return the figures of a run. Runs on a worker."""
    with contextlib.closing(open_source(run.path, os.environ)) as source:
        period = periods.find_period(source, run.session)
        return load_run(source, period, period.name)
