"""``gswarm-tui compare``: compare runs side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gswarm_tui.analysis import comparison
from gswarm_tui.analysis.periods import Period
from gswarm_tui.commands.output_files import check_output_file
from gswarm_tui.commands.run_choice import expand, load_each
from gswarm_tui.common.errors import UserError, printable
from gswarm_tui.options.arguments import CommandParser
from gswarm_tui.printing import formats
from gswarm_tui.store.querying.results import QuerySource


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print a comparison. Raises UserError, StoreError."""
    from gswarm_tui.printing.table import show, width_of

    parser = CommandParser(
        "compare",
        "RUN RUN [RUN ...] [--db PATH]",
        "Compare runs with the first one: time, scaling, energy, utilisation, idle phases, memory.",
    )
    text = "session by name or number, file (its newest session), run1.duckdb:train, or 'runs/*.duckdb'"
    parser.add_argument("runs", nargs="*", metavar="RUN", help=text)
    formats.add_options(parser)
    arguments = parser.read(args)
    form = formats.parse_output_options(arguments)
    chosen = expand(arguments.runs, arguments.db)
    if len(chosen) < 2:
        raise UserError(
            "compare needs two runs or more, as in gswarm-tui compare a.duckdb b.duckdb; gswarm-tui sessions "
            "lists those of a recording."
        )

    def load(source: QuerySource, period: Period) -> comparison.ComparedRun:
        check_output_file(form.out, force=form.force, recording=source.path)
        return comparison.load_run(source, period, period.name)

    found = load_each(chosen, environ, load, "summarising the runs")
    first = found[0]
    compared = {(run.file, run.summary.period.recording_id, run.summary.period.session_id) for run in found}
    if len(compared) == 1:
        what = f"{printable(first.label)} in {printable(first.file)}"
        raise UserError(f"all runs are the same one, {what}; name another to compare it with.")
    runs = _with_distinct_labels(found)
    if form.format not in ("table", "markdown"):
        formats.write(comparison.comparison_result(runs), form)
        return 0
    many = len(runs) > comparison.MOST_COLUMNS
    table = comparison.lines_table(runs) if many else comparison.comparison_table(runs)
    remarks = list(comparison.comparison_notes(runs))
    with formats.text_out(form.out) as out:
        if form.format == "markdown":
            formats.write_markdown_table(table.names, table.rows, out, right=table.right)
            out.write("\n" + "  \n".join(map(printable, remarks)) + "\n")
        else:
            show(table.names, table.rows, out, right=table.right, every=form.every or not many)
            out.write("\n")
            room = width_of(out) or 120
            out.writelines(
                textwrap.fill(printable(each), room, break_on_hyphens=False) + "\n" for each in remarks
            )
    return 0


def _with_distinct_labels(runs: Sequence[comparison.ComparedRun]) -> list[comparison.ComparedRun]:
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
