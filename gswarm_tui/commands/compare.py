"""``gswarm-tui compare``: compare runs side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gswarm_tui.analysis import comparison
from gswarm_tui.commands.dask_choice import add_dask, load_by_dask
from gswarm_tui.commands.run_choice import expand, load_runs
from gswarm_tui.common.errors import UserError, printable
from gswarm_tui.options.arguments import CommandParser
from gswarm_tui.printing import formats


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print a comparison. Raises UserError, StoreError."""
    from gswarm_tui.printing.table import width_of

    parser = CommandParser(
        "compare",
        "RUN RUN [RUN ...] [--db PATH]",
        "Compare runs with the first one: time, scaling, energy, utilisation, idle phases, memory.",
    )
    text = "session by name or number, file (its newest session), run1.duckdb:train, or 'runs/*.duckdb'"
    parser.add_argument("runs", nargs="*", metavar="RUN", help=text)
    add_dask(parser)
    formats.add_options(parser)
    arguments = parser.read(args)
    form = formats.parse_output_options(arguments)
    by_dask = load_by_dask(arguments.dask, arguments.runs, form, environ) if arguments.dask else None
    chosen = [] if by_dask else expand(arguments.runs, arguments.db)
    if len(by_dask or chosen) < 2:
        raise UserError(
            "compare needs two different runs or more, as in gswarm-tui compare a.duckdb b.duckdb; "
            "gswarm-tui sessions lists those of a recording."
        )

    runs = by_dask or load_runs(chosen, environ, form.out, force=form.force)
    # Dask's workers may read different files of one path, on local disks.
    if len({(run.file, run.run, run.summary.period.session_id) for run in runs}) == 1:
        what = f"{printable(runs[0].summary.period.name)} in {printable(runs[0].file)}"
        raise UserError(f"all runs are the same one, {what}; name another to compare it with.")
    if form.format not in ("table", "markdown"):
        formats.write(comparison.comparison_result(runs), form)
        return 0
    many = len(runs) > comparison.MOST_COLUMNS
    table = comparison.lines_table(runs) if many else comparison.comparison_table(runs)
    remarks = list(comparison.comparison_notes(runs))
    with formats.text_out(form.out) as out:
        shown = form if many else replace(form, every=True)
        formats.write_text_table(table.names, table.rows, out, shown, right=table.right)
        out.write("\n")
        if form.format == "markdown":
            out.write("  \n".join(map(printable, remarks)) + "\n")
        else:
            room = width_of(out) or 120
            out.writelines(
                textwrap.fill(printable(each), room, break_on_hyphens=False) + "\n" for each in remarks
            )
    return 0
