"""Output of a trial's results: tables with notes, Markdown, JSON, data files, and the plot."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from gswarm_tui.common.errors import printable
from gswarm_tui.common.quantities import plural
from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.trials.figures import measure
from gswarm_tui.trials.outcome import REPEATED
from gswarm_tui.trials.recorded import RecordedTrial
from gswarm_tui.trials.result_data import placements_result, results_json
from gswarm_tui.trials.result_text import command_text, notes, scaling_table, sentence, usage_table
from gswarm_tui.trials.results import TrialResults, trial_results

if TYPE_CHECKING:
    from gswarm_tui.printing.formats import OutputOptions


def load_results(source: QuerySource, trial: RecordedTrial) -> TrialResults:
    """Return the results of a trial so far, with figures from the samples. Raises StoreError."""
    return trial_results(trial.plan, measure(source, trial.outcomes))


def write_results(results: TrialResults, form: OutputOptions) -> None:
    """Print results, or write them to a file. Raises StoreError."""
    from gswarm_tui.printing import formats
    from gswarm_tui.printing.json_output import print_json

    if form.format in ("csv", "parquet"):
        formats.write(placements_result(results), form)
        return
    with formats.text_out(form.out) as out:
        if form.format == "json":
            print_json(results_json(results), out)
        elif form.format == "markdown":
            _write_markdown(results, out)
        else:
            _write_text(results, out)


def write_plot(results: TrialResults, path: Path) -> None:
    """Draw the results into a .pdf, .png or .svg file. Raises StoreError."""
    from gswarm_tui.plotting.trial_plot import draw_trial
    from gswarm_tui.printing.formats import atomic_file

    with atomic_file(path) as part:
        part.write_bytes(draw_trial(results, path.suffix[1:].lower()))


def _heading(results: TrialResults) -> str:
    outcomes = [run.outcome for run in results.runs]
    done = len({one.run.number for one in outcomes if one.status not in REPEATED and not one.run.warm_up})
    planned = sum(not run.warm_up for run in results.plan.runs)
    failed = done - sum(len(row.complete) for row in results.rows)
    ended = f"{done} of {plural(planned, 'run')} ended" + (f", {failed} failed" if failed else "")
    return f"{command_text(results)} · {plural(len(results.rows), 'placement')} · {ended}"


def _write_text(results: TrialResults, out: TextIO) -> None:
    from gswarm_tui.printing.table import show, width_of

    out.write(f"{_heading(results)}\n\n")
    for table in (scaling_table(results), usage_table(results)):
        show(table.names, table.rows, out, right=table.right)
        out.write("\n")
    room = width_of(out) or 120
    lines = [sentence(results), "", *notes(results)]
    out.writelines(textwrap.fill(printable(line), room, break_on_hyphens=False) + "\n" for line in lines)


def _write_markdown(results: TrialResults, out: TextIO) -> None:
    from gswarm_tui.printing.formats import write_markdown_table

    out.write(f"**{printable(sentence(results))}**  \n{_heading(results)}\n")
    for table in (scaling_table(results), usage_table(results)):
        out.write("\n")
        write_markdown_table(table.names, table.rows, out, right=table.right)
    out.write("\n" + "  \n".join(map(printable, notes(results))) + "\n")
