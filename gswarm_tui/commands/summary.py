"""``gswarm-tui summary``: summarise a session or a whole recording."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Mapping, Sequence

from gswarm_tui.analysis import periods, summary_text
from gswarm_tui.analysis.comparison import ComparedRun, comparison_result, lines_table, partial_notes
from gswarm_tui.analysis.profiles import longest_kernels, profile_line
from gswarm_tui.analysis.summary_data import (
    ProcessPeaks,
    Summary,
    figures_result,
    processes,
    processes_result,
    summarize,
)
from gswarm_tui.analysis.summary_text import TextTable
from gswarm_tui.commands.dask_choice import add_dask, load_by_dask
from gswarm_tui.commands.output_files import check_output_file
from gswarm_tui.commands.recording_choice import add_session, open_session
from gswarm_tui.commands.run_choice import expand_several, load_runs, print_copies
from gswarm_tui.common.errors import UserError, printable
from gswarm_tui.options import values
from gswarm_tui.options.arguments import CommandParser
from gswarm_tui.printing import formats
from gswarm_tui.printing.progress import Progress
from gswarm_tui.store.querying.results import QuerySource

ALL, NODE, GPU, PROCESS = WAYS = ("all", "node", "gpu", "process")
_FEW_NODES, _FEW_GPUS = 24, 16
"""Longer tables are printed only with --by."""
_FIGURES, _FINDINGS = ("figure", "value"), ("note", "what the rules find")


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print a summary. Raises UserError, StoreError."""
    from gswarm_tui.printing.table import print_labelled, show

    parser = CommandParser(
        "summary",
        "[SESSION | FILE ...] [--by GROUPING] [options]",
        "Summarise a session, or the sessions of several files: utilisation, idle phases, energy, memory, "
        "throttling, coverage.",
    )
    add_session(parser)
    parser.add_argument("--by", choices=WAYS, help="grouping (default: chosen by size)")
    text = "columns of the text, as for a mail: 72"
    parser.add_argument("--width", type=values.whole(40, 1000), metavar="N", help=text)
    parser.add_argument("--no-findings", action="store_true", help="leave out what the rules find")
    add_dask(parser)
    formats.add_options(parser)
    arguments = parser.read(args)
    form = formats.parse_output_options(arguments)
    if arguments.dask:
        loaded = load_by_dask(arguments.dask, arguments.session, form, environ)
        return _summarize_several(arguments, form, loaded)
    if runs := expand_several(arguments.session):
        loaded = load_runs(runs, environ, form.out, force=form.force)
        return _summarize_several(arguments, form, loaded)
    with open_session(arguments.session, arguments.db, environ) as (source, period):
        check_output_file(form.out, force=form.force, recording=source.path)
        doing = f"summarising {printable(period.name)}"
        if form.format not in ("table", "markdown"):
            with Progress(doing):
                answer = (
                    processes_result(source, period)
                    if arguments.by == PROCESS
                    else figures_result(source, period, arguments.by or "")
                )
            formats.write(answer, form)
            return 0
        with Progress(doing):
            summary = summarize(source, period)
            listed = processes(source, period) if arguments.by == PROCESS else []
            profiled = profile_line(source, period)
            kernels = longest_kernels(source, period) if profiled and arguments.by is None else None
        if summary.whole is None and not profiled:
            raise UserError(
                f"{period.name} in {printable(str(source.path))} has no GPU samples; gswarm-tui sessions "
                "lists others, and gswarm-tui sql 'FROM event_log' the events."
            )
        blocks = _blocks(summary, listed, arguments.by, profiled, kernels)
        if arguments.by is None and not arguments.no_findings and summary.whole is not None:
            blocks.append(TextTable(_FINDINGS, _note(source, summary, environ), frozenset()))
        name, path, times = (
            printable(text) for text in (period.name, str(source.path), summary_text.heading(summary))
        )
        markdown = form.format == "markdown"
        heading = f"**{name}** · {path}  \n{times}\n" if markdown else f"{name} · {path}\n{times}\n"
        note = f"{printable(period.note)}\n" if period.note else ""
        with formats.text_out(form.out) as out:
            out.write(heading + ("\n" if note and markdown else "") + note)
            for block in blocks:
                out.write("\n")
                names, rows, right = block.names, block.rows, block.right
                if markdown:
                    formats.write_markdown_table(names, rows, out, right=right)
                elif names in (_FIGURES, _FINDINGS):
                    print_labelled(rows, out, arguments.width)
                else:
                    show(names, rows, out, right=right, every=form.every, width=arguments.width)
    return 0


def _summarize_several(arguments: Namespace, form: formats.OutputOptions, loaded: list[ComparedRun]) -> int:
    """Print a line for each run and one for all, or each node or GPU of each run."""
    if arguments.by == PROCESS:
        raise UserError("--by process takes one session; name one, or remove --by.")
    if form.format not in ("table", "markdown"):
        if arguments.by is not None:
            raise UserError(
                "--by of several files is text only; gswarm-tui sql 'FROM session_summary' has the data."
            )
        formats.write(comparison_result(loaded), form)
        return 0
    table = lines_table(loaded, with_total=True)
    if arguments.by not in (NODE, GPU):
        print_copies(loaded)
    else:
        parts = [(run, run.summary.nodes if arguments.by == NODE else run.summary.gpus) for run in loaded]
        table = summary_text.figures_table([one for _, part in parts for one in part])
        labels = [run.label for run, part in parts for _ in part]
        lines = [(label, *line) for label, line in zip(labels, table.rows, strict=True)]
        table = TextTable(("run", *table.names), lines, frozenset(at + 1 for at in table.right))
    with formats.text_out(form.out) as out:
        formats.write_text_table(table.names, table.rows, out, form, right=table.right)
        out.writelines(f"\n{printable(note)}\n" for note in partial_notes(loaded))
    return 0


def _blocks(
    summary: Summary, listed: list[ProcessPeaks], by: str | None, profiled: str, kernels: TextTable | None
) -> list[TextTable]:
    """Return what is printed: figures and tables."""
    lines = summary_text.summary_lines(summary)
    if profiled:
        lines.append(("profiles", profiled))
    blocks = [TextTable(_FIGURES, lines, frozenset())]
    if by == PROCESS:
        blocks.append(summary_text.process_table(listed))
    if by == NODE or (by is None and 1 < len(summary.nodes) <= _FEW_NODES):
        blocks.append(summary_text.figures_table(summary.nodes))
    few = len(summary.gpus) <= _FEW_GPUS
    if by == GPU or (by is None and few and summary.whole is not None):
        blocks.append(summary_text.figures_table(summary.gpus))
    if kernels is not None and kernels.rows:
        blocks.append(kernels)
    return blocks


def _note(source: QuerySource, summary: Summary, environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return what the rules find, or the stored findings of a thinned run; of many samples, a command."""
    from gswarm_tui.insight.notes import closing_note
    from gswarm_tui.insight.recorded import MOST_SAMPLES, diagnose, stored_findings

    period = summary.period
    if period.thinned_at is not None:
        command = f"gswarm-tui sql --db={shlex.quote(str(source.path))} 'FROM findings'"
        text = f"on {period.thinned_at:%Y-%m-%d}; findings are those stored while it was recorded"
        stored = stored_findings(source, period.recording_id, *period.bounds)
        return [("thinned", text), *closing_note(stored, {}, command)]
    sessions = periods.load_sessions(source)
    names = dict(zip((one.session_id for one in sessions), periods.references(sessions), strict=True))
    name = shlex.quote(names.get(period.session_id, period.name))
    command = f"gswarm-tui diagnose --db={shlex.quote(str(source.path))} -- {name}"
    if summary.whole is None or summary.whole.samples > MOST_SAMPLES:
        return [("findings", f"{command} looks for them in all samples")]
    with Progress(f"diagnosing {printable(period.name)}") as progress:
        found = diagnose(source, period.recording_id, *period.bounds, environ, progress=progress.report)
    return closing_note(found.findings, found.ledger, command, found.pace)
