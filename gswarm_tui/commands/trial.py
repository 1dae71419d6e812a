"""``gswarm-tui trial``: run a command under several placements, each a session of one recording.

A trial is a recorder with a command, as of ``record``; that command is this program again, which does the
runs (``trials/running.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gswarm_tui.commands.head_choice import SHORT_ID
from gswarm_tui.commands.output_files import check_output_file
from gswarm_tui.commands.record import check_command
from gswarm_tui.commands.recording_choice import find_recording_file, open_source
from gswarm_tui.commands.trial_output import load_results, write_results
from gswarm_tui.common.errors import print_notice
from gswarm_tui.common.processes import own_command
from gswarm_tui.common.quantities import duration, plural
from gswarm_tui.control.intents import LogEvent
from gswarm_tui.fleet.trial_kinds import TRIAL_PLANNED
from gswarm_tui.options.trial_options import parse_trial
from gswarm_tui.printing import formats
from gswarm_tui.profiling.allocation import find_job
from gswarm_tui.profiling.profile_run import command_line
from gswarm_tui.profiling.slurm_commands import until_signal
from gswarm_tui.slurm.jobs import label_of_shell
from gswarm_tui.trials.outcome import StoppedTrialError, load_trials
from gswarm_tui.trials.plan import TrialError, TrialPlan, ordered_runs, placements_of
from gswarm_tui.trials.running import TrialDriver, TrialRecorder, gpus_of_nodes, plan_texts

if TYPE_CHECKING:
    from gswarm_tui.run.headless import OpenRecording

PLAN_VARIABLE, RECORDING_VARIABLE = "GSWARM_TRIAL_PLAN", "GSWARM_TRIAL_RECORDING"
"""Variables with the plan and the uid of the recording, for this program's own processes alone."""
INTERRUPTED_TEXT = "the trial was interrupted, and its step has ended."
MOST_SHOWN = 80


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a trial; return its exit status. Raises UserError."""
    options = parse_trial(args, environ, formats.add_options)
    form = formats.parse_output_options(options)
    if options.results:
        return _print_results(find_recording_file(options.run.db, environ), form, environ)
    if options.drives:
        return _drive(TrialPlan.from_json(os.environ.pop(PLAN_VARIABLE)), options, environ)
    available = gpus_of_nodes(asyncio.run(find_job(_job(options, environ))))
    placements = placements_of(options.node_counts, options.gpus_per_node, options.placements, available)
    trial_id = secrets.token_hex(6)
    plan = TrialPlan(
        trial_id,
        options.command,
        ordered_runs(placements, options.repeat, trial_id),
        timeout_s=options.timeout,
        throughput=options.throughput,
        ntasks_per_node=options.ntasks_per_node,
        srun=options.srun,
    )
    if options.dry_run:
        for line in _plan_lines(plan):
            print(line)
        return 0
    if status := check_command(plan.command[0]):
        return status
    check_output_file(form.out, force=form.force, recording=options.run.db or Path())
    print_notice(*_plan_lines(plan))
    os.environ[PLAN_VARIABLE] = plan.to_json()
    db, status = _run_in_job(plan, options, environ)
    if db is not None:
        with contextlib.closing(open_source(db, environ)) as source:
            done = next((one for one in load_trials(source) if one.plan.trial_id == plan.trial_id), None)
            results = load_results(source, done) if done is not None and done.outcomes else None
        if results is not None:
            write_results(results, form)
    return status


def _print_results(db: Path, form: formats.OutputOptions, environ: Mapping[str, str]) -> int:
    """Print the results of the newest trial in a recording. Raises UserError."""
    with contextlib.closing(open_source(db, environ)) as source:
        if not (trials := load_trials(source)):
            raise TrialError(f"{db} has no trial; name another recording with --db.")
        results = load_results(source, trials[-1])
        check_output_file(form.out, force=form.force, recording=source.path)
    write_results(results, form)
    return 0


def _job(options: Namespace, environ: Mapping[str, str]) -> str:
    if job := options.run.job or label_of_shell(environ):
        return job
    raise TrialError("a trial runs within a Slurm job: start inside salloc, or add --job ID.")


def _plan_lines(plan: TrialPlan) -> list[str]:
    """Return lines on a plan: its runs and their cost."""
    text = command_line(plan.command)
    shown = text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 1]}…"
    lines = [f"{plural(len(plan.runs), 'run')} of {shown}, in random order after a warm-up"]
    for placement in plan.placements:
        count = sum(run.placement == placement and not run.warm_up for run in plan.runs)
        lines.append(f"  {placement}: {plural(count, 'run')}")
    most = "unknown; --timeout limits it"
    if plan.timeout_s is not None:
        hours = sum(run.placement.gpus for run in plan.runs) * plan.timeout_s / 3600
        most = f"at most {hours:.3g} GPU-hours in {duration(len(plan.runs) * plan.timeout_s)} (--timeout)"
    return [*lines, f"  cost: {most}"]


def _run_in_job(plan: TrialPlan, options: Namespace, environ: Mapping[str, str]) -> tuple[Path | None, int]:
    """Record the nodes of the job while another process does the runs.

    Return the recording's file, None if it couldn't be opened, and the exit status.
    """
    from gswarm_tui.run.batch import BatchRun
    from gswarm_tui.run.headless import Headless
    from gswarm_tui.run.plan import resolve_nodes

    _job(options, environ)
    run_options = options.run._replace(arm=False)
    nodes = resolve_nodes(run_options, environ)
    if nodes.job is None:
        raise TrialError("Slurm doesn't know the job of this shell; name one with --job ID.")
    command = own_command("trial", "--drives", f"--job={nodes.job_id}")
    headless = Headless(run_options, nodes, ["trial", "--", *plan.command], runs_command=True)

    def begin(recording: OpenRecording) -> Mapping[str, str]:
        if sys.stderr.isatty():
            which = recording.uid[:SHORT_ID]
            print_notice(f"to watch the nodes, in another terminal on this host: gswarm-tui attach {which}")
        return {**os.environ, RECORDING_VARIABLE: recording.uid}

    batch = BatchRun(headless, command, arm=begin, name="trial", needs_recording=True)
    status = batch.run()
    return None if batch.recording is None else batch.recording.path, status


def _drive(plan: TrialPlan, options: Namespace, environ: Mapping[str, str]) -> int:
    """Do all runs; return the exit status. Raises UserError."""
    recorder = TrialRecorder(os.environ.pop(RECORDING_VARIABLE), environ)

    async def drive() -> int:
        await recorder.carry_out(LogEvent(TRIAL_PLANNED, *plan_texts(plan)))
        path = (await recorder.recording()).absolute()
        driver = TrialDriver(plan, recorder, path.with_name(f"{path.stem}-trial"))
        return 1 if await driver.run(_job(options, environ)) else 0

    return until_signal(drive(), INTERRUPTED_TEXT, StoppedTrialError.exit_status)
