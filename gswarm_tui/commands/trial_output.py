"""Output of a trial's results: tables with notes, Markdown, JSON, data files."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

from gswarm_tui.common.errors import printable
from gswarm_tui.common.quantities import plural
from gswarm_tui.printing import formats
from gswarm_tui.printing.json_output import print_json
from gswarm_tui.store.querying.results import QuerySource, Result
from gswarm_tui.trials.figures import measure
from gswarm_tui.trials.outcome import RecordedTrial, RunOutcome
from gswarm_tui.trials.result_text import command_text, notes, result_table, sentence
from gswarm_tui.trials.results import PlacementResult, TrialResults, trial_results


def load_results(source: QuerySource, trial: RecordedTrial) -> TrialResults:
    """Return the results of a trial so far, with figures from the samples. Raises StoreError."""
    return trial_results(trial.plan, measure(source, trial.outcomes))


def write_results(results: TrialResults, form: formats.OutputOptions) -> None:
    """Print results, or write them to a file. Raises StoreError."""
    if form.format in ("csv", "parquet"):
        formats.write(placements_result(results), form)
    else:
        with formats.text_out(form.out) as out:
            if form.format == "json":
                print_json(results_json(results), out)
            elif form.format == "markdown":
                _write_markdown(results, out)
            else:
                _write_text(results, out)


def _heading(results: TrialResults) -> str:
    done = sum(not run.outcome.run.warm_up for run in results.runs)
    planned = sum(not run.warm_up for run in results.plan.runs)
    failed = done - sum(len(row.complete) for row in results.rows)
    ended = f"{done} of {plural(planned, 'run')} ended" + (f", {failed} failed" if failed else "")
    return f"{command_text(results)} · {plural(len(results.rows), 'placement')} · {ended}"


def _write_text(results: TrialResults, out: TextIO) -> None:
    from gswarm_tui.printing.table import show, width_of

    out.write(f"{_heading(results)}\n\n")
    table = result_table(results)
    show(table.names, table.rows, out, right=table.right)
    out.write("\n")
    room = width_of(out) or 120
    lines = [sentence(results), "", *notes(results)]
    out.writelines(textwrap.fill(printable(line), room, break_on_hyphens=False) + "\n" for line in lines)


def _write_markdown(results: TrialResults, out: TextIO) -> None:
    out.write(f"**{printable(sentence(results))}**  \n{_heading(results)}\n\n")
    table = result_table(results)
    formats.write_markdown_table(table.names, table.rows, out, right=table.right)
    out.write("\n" + "  \n".join(map(printable, notes(results))) + "\n")


_Value = Callable[[TrialResults, PlacementResult], Any]


_COLUMNS: dict[str, tuple[str, _Value]] = {
    "nodes": ("INTEGER", lambda _, row: row.placement.nodes),
    "gpus_per_node": ("INTEGER", lambda _, row: row.placement.gpus_per_node),
    "gpus": ("INTEGER", lambda _, row: row.placement.gpus),
    "placement": ("VARCHAR", lambda _, row: row.placement.spread),
    "runs": ("INTEGER", lambda _, row: len(row.complete)),
    "incomplete_runs": ("INTEGER", lambda _, row: len(row.incomplete)),
    "wall_s": ("DOUBLE", lambda _, row: row.wall_s),
    "throughput": ("DOUBLE", lambda _, row: row.throughput),
    "spread": ("DOUBLE", lambda _, row: row.spread),
    "speed_up": ("DOUBLE", lambda _, row: row.speed_up),
    "efficiency": ("DOUBLE", lambda _, row: row.efficiency),
    "knee": ("BOOLEAN", lambda made, row: row is made.knee),
    "unit": ("BIGINT", lambda made, _: made.plan.unit),
    "gpu_s": ("DOUBLE", lambda _, row: row.gpu_s),
    "energy_j": ("DOUBLE", lambda _, row: row.energy_j),
    "util_mean_pct": ("DOUBLE", lambda _, row: row.util_mean_pct),
    "balance": ("DOUBLE", lambda _, row: row.balance),
}


def placements_result(results: TrialResults) -> Result:
    """Return a row for each placement."""
    rows = [tuple(value(results, row) for _, value in _COLUMNS.values()) for row in results.rows]
    return Result(tuple(_COLUMNS), tuple(kind for kind, _ in _COLUMNS.values()), iter([rows]))


def results_json(results: TrialResults) -> dict[str, Any]:
    """Return the trial, its placements and its runs as one JSON object; times are in UTC."""
    runs = sorted((run.outcome for run in results.runs), key=lambda one: one.started_at)
    return {
        "trial": results.plan.trial_id,
        "command": command_text(results),
        "throughput": results.plan.throughput,
        "sentence": sentence(results),
        "placements": placements_result(results).dicts(),
        "runs": [_run(outcome) for outcome in runs],
    }


def _run(outcome: RunOutcome) -> dict[str, Any]:
    placement = outcome.run.placement
    return {
        "run": outcome.run.number,
        "nodes": placement.nodes,
        "gpus_per_node": placement.gpus_per_node,
        "placement": placement.spread,
        "repeat": outcome.run.repeat,
        "warm_up": outcome.run.warm_up,
        "status": outcome.status,
        "reason": outcome.reason or None,
        "started_at": datetime.fromtimestamp(outcome.started_at, UTC).isoformat().replace("+00:00", "Z"),
        "wall_s": outcome.wall_s,
        "throughput": outcome.throughput,
        "exit_status": outcome.exit_status,
        "node_names": list(outcome.nodes),
        "session_id": outcome.session_id,
    }
