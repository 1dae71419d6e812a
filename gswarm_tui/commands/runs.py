"""``gswarm-tui runs``: list all recordings below folders, finished or running."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from gswarm_tui.commands.dask_choice import absolute, add_dask, ask_workers
from gswarm_tui.commands.output_files import check_output_file
from gswarm_tui.common.errors import UserError, print_notice, printable, quote
from gswarm_tui.common.quantities import plural
from gswarm_tui.control.client import running_heads
from gswarm_tui.options import values
from gswarm_tui.options.arguments import CommandParser
from gswarm_tui.printing import formats
from gswarm_tui.printing.progress import Progress
from gswarm_tui.run.all_runs import collect, opener
from gswarm_tui.runs import choosing, listing
from gswarm_tui.runs.dask_work import WantedRun
from gswarm_tui.runs.finding_runs import once, search
from gswarm_tui.runs.line import RunLine
from gswarm_tui.store.errors import StoreError

_SKIPPED_NAMED = 20
"""Most skipped files that are named on a terminal."""
_MOST_LISTED = 1_000_000


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print the runs. Raises UserError, StoreError."""
    from gswarm_tui.printing.table import show

    parser = CommandParser(
        "runs",
        "[FOLDER ...] [FILTER ...] [--since TIME] [options]",
        "List all recordings below folders, finished or running, newest first. Without a folder: those below "
        "this one, and all others that were recorded or listed before.",
        database=False,
    )
    text = f"folder, file, or filter such as name:train* ({choosing.FILTERS})"
    parser.add_argument("words", nargs="*", metavar="FOLDER|FILTER", help=text)
    parser.add_argument("--since", metavar="30d|DATE", help="list runs that started since then")
    parser.add_argument("--job", type=values.argument(values.job_id), metavar="ID", help="list runs of a job")
    parser.add_argument("--user", metavar="NAME", help="list runs of a user")
    sorts = "|".join(choosing.SORTS)
    parser.add_argument("--sort", metavar="COLUMN", default="started", help=f"{sorts} (default: started)")
    parser.add_argument("--limit", type=values.whole(1, _MOST_LISTED), metavar="N", help="list the first N")
    parser.add_argument("--nodes", action="store_true", help="list nodes and GPUs at fault in 3 or more runs")
    add_dask(parser)
    formats.add_options(parser)
    arguments = parser.read(args)
    form = formats.parse_output_options(arguments)
    check_output_file(form.out, force=form.force)
    since = None if arguments.since is None else choosing.parse_since(arguments.since)
    # Sorting nothing refuses a wrong name of a column before files are read.
    choosing.sort([], arguments.sort)
    filters = [word for word in arguments.words if choosing.is_filter(word)]
    places = [Path(word).expanduser() for word in arguments.words if word not in filters]
    filters += [f"{name}:{word}" for name in ("job", "user") if (word := getattr(arguments, name))]
    if arguments.dask:
        listed = partial(_wanted, [Path(word) for word in absolute(map(str, places or [Path()]))])
        lines = ask_workers(arguments.dask, _read, listed, environ, "reading recordings")
        found = once(line for of_file in lines for line in of_file)
    else:
        found = load_runs(places, environ)
    chosen = choosing.sort(choosing.choose(found, filters, since), arguments.sort)[: arguments.limit]
    if arguments.nodes:
        # The module loads NumPy, which the list of runs doesn't need.
        from gswarm_tui.runs import lemons

        named = lemons.find(chosen)
        formats.write(lemons.lemon_result(named), form)
        if not named:
            print_notice(f"no node or GPU is at fault in {lemons.LEAST_RUNS} of {plural(len(chosen), 'run')}")
        elif form.format == "table" and form.out is None and (line := lemons.exclude_line(named)):
            print("", printable(line), sep="\n")
        return 0
    if form.format not in ("table", "markdown"):
        formats.write(listing.run_result(chosen), form)
        return 0
    if not chosen:
        where = ", ".join(map(str, places)) or "this folder and the catalogue"
        print_notice(f"none of {plural(len(found), 'run')} matches" if found else f"no recording in {where}")
    table = listing.run_table(chosen, time.time() if form.out is None else None)
    with formats.text_out(form.out) as out:
        if form.format == "markdown":
            formats.write_markdown_table(table.names, table.rows, out, right=table.right)
        elif chosen:
            show(table.names, table.rows, out, right=table.right, every=form.every)
    return 0


def _wanted(places: Sequence[Path]) -> list[WantedRun]:
    """Return the recordings that this host sees. Runs on a worker."""
    return [WantedRun(path) for path in search(places, lambda _path, _why: None)]


def _read(run: WantedRun) -> list[RunLine]:
    """Return the lines of a file. Runs on a worker."""
    from gswarm_tui.runs.reading import read_lines

    heads = [head for head in running_heads(os.environ) if head.path is not None]
    with contextlib.closing(opener(heads)(run.path)) as source:
        return read_lines(source)


def load_runs(places: Sequence[Path], environ: Mapping[str, str], *, copies: bool = False) -> list[RunLine]:
    """Return the runs below folders, else all that are known and those here; name what can't be read.

    With ``copies``, a run has a line for each file that has it.
    Raises UserError, and StoreError if nothing could be read.
    """
    for place in places:
        if not place.exists():
            raise UserError(
                f"there is no folder {quote(str(place))}; name another one, or a filter: {choosing.FILTERS}."
            )
    with Progress("reading recordings") as progress:
        found, skipped = collect(
            places, environ, lambda _, read, of: progress.report(read / max(1, of)), copies=copies
        )
    named = skipped[: _SKIPPED_NAMED if sys.stderr.isatty() else None]
    for text in named:
        print_notice(f"skipped {text}")
    if more := len(skipped) - len(named):
        print_notice(f"skipped {plural(more, 'more file')}; 2> FILE writes all names to a file")
    if skipped and not found:
        raise StoreError("no recording could be read.")
    return found
