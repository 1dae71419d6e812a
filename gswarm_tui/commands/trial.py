"""``gswarm-tui trial``: run a command under several placements, each a session of one recording.

Within a job, the trial is a recorder with a command, as of ``record``; that command is this program again,
which does the runs (``trials/running.py``). With ``--submit``, each run is such a recorder within an
allocation of its own, and all write into one file.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shlex
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gswarm_tui.commands.head_choice import SHORT_ID
from gswarm_tui.commands.output_files import check_output_file
from gswarm_tui.commands.record import check_command
from gswarm_tui.commands.recording_choice import SUFFIX, find_recording_file, open_source
from gswarm_tui.commands.trial_output import load_results, write_results
from gswarm_tui.common.errors import print_notice
from gswarm_tui.common.paths import working_folder
from gswarm_tui.common.processes import own_command
from gswarm_tui.common.quantities import duration, plural
from gswarm_tui.control.intents import LogTrial
from gswarm_tui.fleet.trial_kinds import TRIAL_PLANNED, TRIAL_RUN
from gswarm_tui.options.trial_options import parse_trial
from gswarm_tui.printing import formats
from gswarm_tui.profiling.allocation import allocated, find_job
from gswarm_tui.profiling.profile_run import command_line
from gswarm_tui.profiling.slurm_commands import ProfileError, StoppedError, kept, until_signal
from gswarm_tui.slurm.jobs import label_of_shell
from gswarm_tui.trials.outcome import (
    INTERRUPTED,
    REFUSED,
    RunOutcome,
    StoppedTrialError,
    check_gpu_hours,
)
from gswarm_tui.trials.plan import (
    TrialError,
    TrialPlan,
    TrialRun,
    ordered_runs,
    placements_of,
)
from gswarm_tui.trials.recorded import RecordedTrial, add_event, load_trials
from gswarm_tui.trials.running import TrialDriver, TrialRecorder, gpus_of_nodes, plan_texts

if TYPE_CHECKING:
    from gswarm_tui.run.headless import OpenRecording

PLAN_VARIABLE, RECORDING_VARIABLE = "GSWARM_TRIAL_PLAN", "GSWARM_TRIAL_RECORDING"
"""Variables with the plan and the uid of the recording, for this program's own processes alone."""
INTERRUPTED_TEXT = "the trial was interrupted, and its {} has ended."
PARENT_EVERY_S = 0.5
MOST_SHOWN = 80


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a trial; return its exit status. Raises UserError."""
    options = parse_trial(args, environ, formats.add_options)
    form = formats.parse_output_options(options)
    if options.results:
        return _print_results(find_recording_file(options.run.db, environ), form, options.plot, environ)
    if options.drives:
        return _drive(TrialPlan.from_json(os.environ.pop(PLAN_VARIABLE)), options, environ)
    if options.only is not None:
        return _run_in_job(TrialPlan.from_json(environ[PLAN_VARIABLE]), options, environ)[1]
    plan = _new_plan(options, environ)
    if options.dry_run:
        for line in _plan_lines(plan):
            print(line)
        return 0
    if status := check_command(plan.command[0]):
        return status
    _check_files(form, options.plot, options.run.db or Path())
    print_notice(*_plan_lines(plan))
    os.environ[PLAN_VARIABLE] = plan.to_json()
    if plan.salloc is None:
        db, status = _run_in_job(plan, options, environ)
    else:
        began = datetime.now().astimezone()
        db = options.run.db or working_folder() / f"trial-{began:%Y-%m-%d-%H%M%S}{SUFFIX}"
        _print_how_to_watch(shlex.quote(str(db.absolute())))
        try:
            status = until_signal(
                _submit(plan, db, options), INTERRUPTED_TEXT.format("job"), StoppedTrialError.exit_status
            )
        except (TrialError, StoppedError) as error:
            print_notice(str(error))
            status = error.exit_status
    if db is not None:
        with contextlib.closing(open_source(db, environ)) as source:
            done = next((one for one in load_trials(source) if one.plan.trial_id == plan.trial_id), None)
            results = load_results(source, done) if done is not None and done.outcomes else None
        if results is not None:
            write_results(results, form, options.plot)
    return status


def _print_results(
    db: Path, form: formats.OutputOptions, plot: Path | None, environ: Mapping[str, str]
) -> int:
    """Print the results of the newest trial in a recording. Raises UserError."""
    with contextlib.closing(open_source(db, environ)) as source:
        if not (trials := load_trials(source)):
            raise TrialError(f"{db} has no trial; name another recording with --db.")
        results = load_results(source, trials[-1])
        _check_files(form, plot, source.path)
    write_results(results, form, plot)
    return 0


def _check_files(form: formats.OutputOptions, plot: Path | None, recording: Path) -> None:
    """Refuse output files that can't be written. Raises UserError."""
    check_output_file(form.out, force=form.force, recording=recording)
    check_output_file(plot, force=form.force, recording=recording, option="--plot")


def _new_plan(options: Namespace, environ: Mapping[str, str]) -> TrialPlan:
    if options.salloc is not None:  # as many nodes as the largest run needs
        gpus = max(options.gpus_per_node)
        available = {str(number): gpus for number in range(max(options.node_counts))}
    else:
        available = gpus_of_nodes(asyncio.run(find_job(_job(options, environ))))
    placements = placements_of(options.node_counts, options.gpus_per_node, options.placements, available)
    trial_id = secrets.token_hex(6)
    return TrialPlan(
        trial_id,
        options.command,
        ordered_runs(placements, options.repeat, trial_id),
        timeout_s=options.timeout,
        throughput=options.throughput,
        throughput_mark=options.throughput_mark,
        max_gpu_hours=options.max_gpu_hours,
        salloc=options.salloc,
        ntasks_per_node=options.ntasks_per_node,
        srun=options.srun,
    )


def _job(options: Namespace, environ: Mapping[str, str]) -> str:
    if job := options.run.job or label_of_shell(environ):
        return job
    raise TrialError(
        "a trial runs within a Slurm job: start inside salloc, add --job ID, or add --submit to allocate "
        "nodes for each run."
    )


def _plan_lines(plan: TrialPlan) -> list[str]:
    """Return lines on a plan: its runs and their cost."""
    text = command_line(plan.command)
    shown = text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 1]}…"
    lines = [f"{plural(len(plan.runs), 'run')} of {shown}, in random order after a warm-up"]
    for placement in plan.placements:
        count = sum(run.placement == placement and not run.warm_up for run in plan.runs)
        lines.append(f"  {placement}: {plural(count, 'run')}")
    most = "unknown until the warm-up has ended"
    if plan.timeout_s is not None:
        hours = sum(run.placement.gpus for run in plan.runs) * plan.timeout_s / 3600
        most = f"at most {hours:.3g} GPU-hours in {duration(len(plan.runs) * plan.timeout_s)} (--timeout)"
    if plan.max_gpu_hours is not None:
        most += f"; --max-gpu-hours starts no run that would exceed {plan.max_gpu_hours:g}"
    return [*lines, f"  cost: {most}"]


def _print_how_to_watch(recording: str) -> None:
    if sys.stderr.isatty():
        print_notice(
            f"to watch the trial, in another terminal on this host: gswarm-tui attach {recording}, then key R"
        )


# Within a job


def _run_in_job(plan: TrialPlan, options: Namespace, environ: Mapping[str, str]) -> tuple[Path | None, int]:
    """Record the nodes of the job while another process does the runs.

    Return the recording's file, None if it couldn't be opened, and the exit status.
    """
    umask = os.umask(0o077)
    os.umask(umask | 0o077)
    from gswarm_tui.run.batch import BatchRun
    from gswarm_tui.run.headless import Headless
    from gswarm_tui.run.plan import resolve_nodes
    from gswarm_tui.slurm.jobs import Slurm

    _job(options, environ)
    slurm = Slurm()
    run_options = options.run._replace(arm=False)
    nodes = resolve_nodes(run_options, environ, slurm)
    if nodes.job is None:
        raise TrialError("Slurm doesn't know the job of this shell; name one with --job ID.")
    only = [] if options.only is None else [f"--only={options.only}"]
    command = own_command("trial", "--drives", f"--job={nodes.job_id}", *only)
    headless = Headless(run_options, nodes, ["trial", "--", *plan.command], runs_command=True)
    why_ending = partial(slurm.why_ending, nodes.job_id)
    batch = BatchRun(headless.record, command, umask, why_ending, name="trial", needs_recording=True)

    def begin(recording: OpenRecording) -> Mapping[str, str]:
        if options.only is None:
            _print_how_to_watch(recording.uid[:SHORT_ID])
        return {**os.environ, RECORDING_VARIABLE: recording.uid}

    batch.arm = begin
    status = batch.run()
    return None if batch.recording is None else batch.recording.path, status


def _drive(plan: TrialPlan, options: Namespace, environ: Mapping[str, str]) -> int:
    """Do all runs, or a single one; return the exit status. Raises UserError."""
    recorder = TrialRecorder(os.environ.pop(RECORDING_VARIABLE), environ)

    async def drive() -> int:
        watching = asyncio.create_task(_end_with_parent(asyncio.current_task()))
        try:
            if options.only is None:
                await recorder.carry_out(LogTrial(TRIAL_PLANNED, *plan_texts(plan)))
            path = (await recorder.recording()).absolute()
            driver = TrialDriver(plan, recorder, path.with_name(f"{path.stem}-trial"))
            runs = [run for run in plan.runs if options.only in (None, run.number)]
            return 1 if await driver.run(_job(options, environ), runs) else 0
        finally:
            watching.cancel()

    return until_signal(drive(), INTERRUPTED_TEXT.format("step"), StoppedTrialError.exit_status)


async def _end_with_parent(task: asyncio.Task[object] | None) -> None:
    """Cancel a task when the process that started this one is killed."""
    parent = os.getppid()
    while os.getppid() == parent:  # noqa: ASYNC110 - another process
        await asyncio.sleep(PARENT_EVERY_S)
    if task is not None:
        task.cancel()


# Jobs of their own


async def _submit(plan: TrialPlan, db: Path, options: Namespace) -> int:
    """Do each run in an allocation of its own; return the exit status. Raises TrialError, StoreError."""
    add_event(db, TRIAL_PLANNED, *plan_texts(plan))
    outcomes: tuple[RunOutcome, ...] = ()
    for run in plan.runs:
        check_gpu_hours(plan, outcomes, run)
        status = await _submit_run(run, plan, db, options)
        before, outcomes = outcomes, (await asyncio.to_thread(_recorded, db, plan)).outcomes
        if len(outcomes) == len(before):
            raise StoppedTrialError(f"run {run.number} ended without an outcome, with exit status {status}.")
        if outcomes[-1].status == INTERRUPTED:
            raise StoppedTrialError(f"run {run.number} was interrupted.")
    return 0 if all(outcome.ok for outcome in outcomes) else 1


async def _submit_run(run: TrialRun, plan: TrialPlan, db: Path, options: Namespace) -> int:
    """Do one run in an allocation; return the exit status of its process."""
    placement = run.placement
    salloc = (
        f"--nodes={placement.nodes}",
        f"--gpus-per-node={placement.gpus_per_node}",
        f"--ntasks-per-node={plan.ntasks_per_node or placement.gpus_per_node}",
        *(plan.salloc or ()),
    )
    which, begun = f"run {run.number} of {len(plan.runs)}, {run}", time.time()
    try:
        async with allocated(salloc, "gswarm-trial") as allocation:
            words = own_command("trial", f"--only={run.number}", f"--job={allocation.job.job_id}")
            words += [word for word in options.words if not word.startswith(("--db=", "--job="))]
            variables = [f"{name}={value}" for name, value in allocation.environ.items()]
            command = ["env", *variables, *words, f"--db={db}"]
            async with kept(command, passes_output=True, grace_s=0) as running:
                return await running.wait()
    except ProfileError as error:
        reason = str(error).rstrip(".")
        print_notice(f"{which}: {REFUSED}: {reason}")
        outcome = RunOutcome(plan.trial_id, run, REFUSED, begun, 0.0, reason=reason)
        add_event(db, TRIAL_RUN, f"{which}: {REFUSED}: {reason}", outcome.to_json())
        return 0


def _recorded(db: Path, plan: TrialPlan) -> RecordedTrial:
    """Return the trial as it is recorded in a file. Raises UserError, StoreError."""
    with contextlib.closing(open_source(db, os.environ)) as source:
        return next(one for one in load_trials(source) if one.plan.trial_id == plan.trial_id)
