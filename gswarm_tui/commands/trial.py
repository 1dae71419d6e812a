"""``gswarm-tui trial``: run a command under several placements, each a session of one recording.

Within a job, the trial is a recorder with a command, as of ``record``; that command is this program again,
which does the runs (``trials/running.py``). With ``--submit``, each run is such a recorder within an
allocation of its own, and all write into one file.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import shlex
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gswarm_tui.commands.head_choice import SHORT_ID
from gswarm_tui.commands.output_files import check_output_file
from gswarm_tui.commands.record import check_command
from gswarm_tui.commands.recording_choice import SUFFIX, find_recording_file, open_source
from gswarm_tui.commands.trial_output import load_results, write_plot, write_results
from gswarm_tui.common.errors import print_notice
from gswarm_tui.common.paths import working_folder
from gswarm_tui.common.quantities import duration, plural
from gswarm_tui.fleet.trial_kinds import TRIAL_PLANNED, TRIAL_RUN
from gswarm_tui.options.trial_options import TrialOptions, parse_trial
from gswarm_tui.printing import formats
from gswarm_tui.profiling.allocation import allocated, find_job
from gswarm_tui.profiling.profile_run import command_line
from gswarm_tui.profiling.slurm_host import ProfileError, ThisMachine, kept
from gswarm_tui.slurm.jobs import label_of_shell
from gswarm_tui.trials.cost import StoppedTrialError, expected_cost, gpu_hours, longest_time, reached_floor
from gswarm_tui.trials.outcome import INTERRUPTED, OVER_LIMIT, REFUSED, RunOutcome, failures
from gswarm_tui.trials.plan import (
    AvailableNodes,
    TrialError,
    TrialPlan,
    TrialRun,
    ordered_runs,
    placements_of,
)
from gswarm_tui.trials.recorded import RecordedTrial, add_event, load_trials, unfinished_run
from gswarm_tui.trials.results import TrialResults
from gswarm_tui.trials.running import TrialDriver, available_nodes
from gswarm_tui.trials.saved_plan import read_plan, remove_plan, save_plan
from gswarm_tui.trials.trial_recorder import TrialRecorder, plan_texts

if TYPE_CHECKING:
    from gswarm_tui.run.headless import OpenRecording

RECORDING_VARIABLE = "GSWARM_TRIAL_RECORDING"
"""Variable with the uid of the recording, for the process that does the runs."""
STOPPED, AFTER_CTRL_C = 3, 130
PARENT_EVERY_S = 0.5
MOST_SHOWN = 80


class InterruptedTrialError(TrialError):
    """A signal ended the trial."""

    def __init__(self, number: signal.Signals, ended: str) -> None:
        super().__init__(f"the trial was interrupted, and its {ended} has ended.")
        self.exit_status = AFTER_CTRL_C if number == signal.SIGINT else STOPPED


class _Part(NamedTuple):
    """Part of a trial that this process does: all runs, those that are left, or a single one."""

    plan: TrialPlan
    db: Path | None = None
    only: int | None = None
    resumed: RecordedTrial | None = None


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a trial, or what is left of one; return its exit status. Raises UserError."""
    options = parse_trial(args, environ, formats.add_options)
    form = formats.parse_output_options(options.output)
    if options.results:
        return _print_results(find_recording_file(options.run.db, environ), form, options.plot, environ)
    if options.drives:
        return _drive(options, environ)
    if options.trial is not None:
        part = _Part(_own_plan(options.trial), options.run.db, options.only)
        return _run_in_job(part, options, environ)[1]
    part = (
        _resumed(options, environ) if options.resume else _Part(_new_plan(options, environ), options.run.db)
    )
    if options.dry_run:
        for line in _plan_lines(part.plan, part.resumed):
            print(line)
        return 0
    if status := check_command(part.plan.command[0]):
        return status
    _check_files(form, options.plot, part.db or Path())
    save_plan(part.plan)
    if part.resumed is None:
        print_notice(*_plan_lines(part.plan))
    if part.plan.salloc is None:
        db, status = _run_in_job(part, options, environ)
    else:
        began = datetime.now().astimezone()
        db = part.db or working_folder() / f"trial-{began:%Y-%m-%d-%H%M%S}{SUFFIX}"
        _print_how_to_watch(shlex.quote(str(db.absolute())))
        status = _submitted(part.plan, db, options)
    if db is not None:
        with contextlib.closing(open_source(db, environ)) as source:
            done = next((one for one in load_trials(source) if one.plan.trial_id == part.plan.trial_id), None)
            results = load_results(source, done) if done is not None and done.outcomes else None
        if status and (done is None or done.left):
            _print_how_to_resume(db)
        else:
            remove_plan(part.plan.trial_id)
        if results is not None:
            _write(results, form, options.plot)
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
        stopped = trials[-1].left and not source.running
    _write(results, form, plot)
    if stopped:
        _print_how_to_resume(db)
    return 0


def _print_how_to_resume(db: Path) -> None:
    print_notice(f"to do the runs that are left: gswarm-tui trial --resume --db {shlex.quote(str(db))}")


def _check_files(form: formats.OutputOptions, plot: Path | None, recording: Path) -> None:
    """Refuse output files that can't be written. Raises UserError."""
    check_output_file(form.out, force=form.force, recording=recording)
    check_output_file(plot, force=form.force, recording=recording, option="--plot")


def _write(results: TrialResults, form: formats.OutputOptions, plot: Path | None) -> None:
    write_results(results, form)
    if plot is not None:
        write_plot(results, plot)


# Plans


def _new_plan(options: TrialOptions, environ: Mapping[str, str]) -> TrialPlan:
    available = _available(options, environ)
    placements = placements_of(options.node_counts, options.gpus_per_node, options.placements, available)
    seed = random.SystemRandom().randrange(1, 1_000_000) if options.seed is None else options.seed
    runs = ordered_runs(placements, options.repeat, seed, ascending=options.floor is not None)
    return TrialPlan(
        secrets.token_hex(6),
        options.command,
        runs,
        seed=seed,
        timeout_s=options.timeout_s,
        throughput=options.throughput,
        throughput_mark=options.throughput_mark,
        floor=options.floor,
        max_gpu_hours=options.max_gpu_hours,
        salloc=options.salloc,
        ntasks_per_node=options.ntasks_per_node,
        srun=options.srun,
    )


def _available(options: TrialOptions, environ: Mapping[str, str]) -> AvailableNodes:
    """Return the nodes of the job, or with --submit as many as the largest run needs."""
    if options.salloc is not None:
        gpus = max(options.gpus_per_node)
        return AvailableNodes({str(number): gpus for number in range(max(options.node_counts))})
    job = _job(options, environ)
    return available_nodes(asyncio.run(find_job(ThisMachine(), job)))


def _job(options: TrialOptions, environ: Mapping[str, str]) -> str:
    if job := options.run.job or label_of_shell(environ):
        return job
    raise TrialError(
        "a trial runs within a Slurm job: start inside salloc, add --job ID, or add --submit to allocate "
        "nodes for each run."
    )


def _own_plan(trial_id: str) -> TrialPlan:
    if (plan := read_plan(trial_id)) is None:
        raise TrialError(f"the plan of trial {trial_id} is gone.")
    return plan


def _resumed(options: TrialOptions, environ: Mapping[str, str]) -> _Part:
    """Return what is left of the newest trial in a recording. Raises UserError."""
    db = find_recording_file(options.run.db, environ)
    with contextlib.closing(open_source(db, environ)) as source:
        if source.running:
            raise TrialError(
                f"{db} is being recorded: gswarm-tui attach shows it; resume the trial afterwards."
            )
        trials = load_trials(source)
        newest = trials[-1] if trials else None
        unfinished = None if newest is None else unfinished_run(source, newest, _requeued_job(environ))
    if newest is None:
        raise TrialError(f"nothing to resume: {db} has no trial; name another recording with --db.")
    if not newest.left:
        count = len(newest.plan.runs)
        raise TrialError(f"nothing to resume: all {count} runs of the newest trial in {db} ended.")
    plan = read_plan(newest.plan.trial_id)
    if plan is None:
        raise TrialError(
            f"the trial in {db} can't be resumed: it has ended, or was started with another home folder; "
            f"to start a new one in this file: gswarm-tui trial --db {shlex.quote(str(db))} -- COMMAND."
        )
    if options.max_gpu_hours is not None:
        plan = replace(plan, max_gpu_hours=options.max_gpu_hours)
    print_notice(
        f"resuming the trial of {_shown(plan)} in {db}: "
        f"{plural(len(newest.left), 'run')} of {len(plan.runs)} left"
    )
    if unfinished is not None:
        text = f"run {unfinished.run.number} of {len(plan.runs)}, {unfinished.run}: {unfinished.reason}"
        print_notice(text)
        if not options.dry_run:
            add_event(db, TRIAL_RUN, text, unfinished.to_json())
        newest = replace(newest, outcomes=(*newest.outcomes, unfinished))
    return _Part(plan, db, resumed=newest)


def _requeued_job(environ: Mapping[str, str]) -> str:
    """Return the job of this shell if Slurm has requeued it, else an empty text."""
    return "" if environ.get("SLURM_RESTART_COUNT", "0") == "0" else label_of_shell(environ)


def _shown(plan: TrialPlan) -> str:
    """Return the command without secrets, as short as fits into a line."""
    text = command_line(plan.command)
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 1]}…"


def _plan_lines(plan: TrialPlan, resumed: RecordedTrial | None = None) -> list[str]:
    """Return lines on a plan, or on what is left of a resumed one: its runs, their order and their cost."""
    runs, outcomes = (plan.runs, ()) if resumed is None else (resumed.left, resumed.outcomes)
    order = "in random order" if plan.floor is None else "the smallest first, in random order for each size"
    lines = [f"{plural(len(runs), 'run')} of {_shown(plan)}, {order} (seed {plan.seed})"]
    lines += [f"  {run.placement}: warm-up" for run in runs if run.warm_up]
    for placement in plan.placements:
        if count := sum(run.placement == placement and not run.warm_up for run in runs):
            lines.append(f"  {placement}: {plural(count, 'run')}")
    if plan.floor is not None:
        lines.append(f"  stops when the efficiency falls below {100 * plan.floor:.0f} %")
    cost = expected_cost(plan, runs, outcomes)
    limit = f"; {gpu_hours(outcomes):.3g} GPU-hours used so far" if outcomes else ""
    if plan.max_gpu_hours is not None:
        limit += f"; --max-gpu-hours ends it at {plan.max_gpu_hours:g} GPU-hours"
    if cost is None:
        until = "a run has succeeded" if outcomes else "the warm-up run has ended"
        lines.append(f"  cost: unknown until {until}{limit}")
    else:
        about, why = ("at most", " (--timeout)") if cost.bound else ("about", "")
        lines.append(
            f"  cost: {about} {cost.gpu_hours:.3g} GPU-hours in {duration(cost.seconds)}{why}{limit}"
        )
    return lines


def _print_how_to_watch(recording: str) -> None:
    if sys.stderr.isatty():
        print_notice(
            f"to watch the trial, in another terminal on this host: gswarm-tui attach {recording}, then key R"
        )


# Within a job


def _run_in_job(part: _Part, options: TrialOptions, environ: Mapping[str, str]) -> tuple[Path | None, int]:
    """Record the nodes of the job while another process does the runs.

    Return the recording's file, None if it couldn't be opened, and the exit status.
    """
    umask = os.umask(0o077)
    os.umask(umask | 0o077)
    from gswarm_tui.run.batch import BatchRun
    from gswarm_tui.run.headless import Headless, OpenRecording
    from gswarm_tui.run.plan import resolve_nodes
    from gswarm_tui.slurm.jobs import Slurm

    _job(options, environ)
    slurm = Slurm()
    run_options = options.run._replace(db=part.db, arm=False)
    nodes = resolve_nodes(run_options, environ, slurm)
    if nodes.job is None:
        raise TrialError("Slurm doesn't know the job of this shell; name one with --job ID.")
    interrupted = None
    if part.resumed is not None and part.db is not None:
        from gswarm_tui.run.interrupted import find

        for each in find(Path(), part.db)[0]:
            if not each.needs_consent and each.preview(run_options)[1].job_id == nodes.job_id:
                run_options, resumed = each.restore(run_options)
                nodes = replace(resumed, job=nodes.job)
                interrupted = OpenRecording(each.interrupted.uid, each.path)
    words = ["trial", "--trial", part.plan.trial_id]
    headless = Headless(run_options, nodes, words, "")
    only = [] if part.only is None else ["--only", str(part.only)]
    command = [sys.executable, "-P", "-m", "gswarm_tui", *words, *only, "--drives", "--job", nodes.job_id]
    why_ending = partial(slurm.why_ending, nodes.job_id)
    batch = BatchRun(
        headless.record,
        command,
        umask,
        why_ending,
        recording=interrupted,
        name="trial",
        needs_recording=True,
    )

    def begin(recording: OpenRecording) -> Mapping[str, str]:
        if part.only is None:
            _print_how_to_watch(recording.uid[:SHORT_ID])
        return {**environ, RECORDING_VARIABLE: recording.uid}

    batch.arm = begin
    status = batch.run()
    return None if batch.recording is None else batch.recording.path, status


def _drive(options: TrialOptions, environ: Mapping[str, str]) -> int:
    """Do the runs; return the exit status. Raises UserError."""
    plan = _own_plan(options.trial or "")
    recorder = TrialRecorder(os.environ.pop(RECORDING_VARIABLE, ""), environ)
    return _until_signal(
        _driven(plan, options, recorder, _job(options, environ)), "step", recorder.stop_waiting
    )


async def _driven(plan: TrialPlan, options: TrialOptions, recorder: TrialRecorder, job: str) -> int:
    """Log the plan, and do all runs that are left, or a single one."""
    watching = asyncio.create_task(_end_with_parent(asyncio.current_task()))
    try:
        path, trial = await recorder.trial(plan.trial_id)
        if trial is None:
            await recorder.log_plan(plan)
            trial = RecordedTrial(plan, ())
        runs = [run for run in trial.left if options.only in (None, run.number)]
        folder = path.absolute().with_name(f"{path.stem}-trial")
        driver = TrialDriver(plan, recorder, folder)
        failed = await driver.run(job, runs, trial.outcomes)
        return 1 if failed else 0
    finally:
        watching.cancel()


async def _end_with_parent(task: asyncio.Task[object] | None) -> None:
    """Cancel a task when the process that started this one is killed."""
    parent = os.getppid()
    while os.getppid() == parent:  # noqa: ASYNC110 - another process
        await asyncio.sleep(PARENT_EVERY_S)
    if task is not None:
        task.cancel()


def _until_signal(
    work: Coroutine[object, object, int], ended: str, on_signal: Callable[[], None] = lambda: None
) -> int:
    """Do the work until a signal ends it.

    The step ends first, then the allocation; ``ended`` is what the user reads of it. Raises
    InterruptedTrialError.
    """
    received: list[signal.Signals] = []

    async def until_signal() -> int:
        task = asyncio.ensure_future(work)

        def stop(number: signal.Signals) -> None:
            for each in signals:  # a second Ctrl-C must not cut the end short
                loop.remove_signal_handler(each)
                signal.signal(each, signal.SIG_IGN)
            received.append(number)
            on_signal()
            task.cancel()

        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in signals:
            loop.add_signal_handler(number, stop, number)
        return await task

    try:
        return asyncio.run(until_signal())
    except asyncio.CancelledError:
        raise InterruptedTrialError(received[0] if received else signal.SIGTERM, ended) from None


# Jobs of their own


def _submitted(plan: TrialPlan, db: Path, options: TrialOptions) -> int:
    """Do the runs in allocations; return the exit status, also of a trial that ended before its last run."""
    try:
        return _until_signal(_submit(plan, db, options), "job")
    except TrialError as error:
        print_notice(str(error))
        return error.exit_status


async def _submit(plan: TrialPlan, db: Path, options: TrialOptions) -> int:
    """Do each run in an allocation of its own; return the exit status. Raises TrialError, StoreError."""
    if not options.resume:
        add_event(db, TRIAL_PLANNED, *plan_texts(plan))
    for run in (await _trial_in(db, plan)).left:
        outcomes = (await _trial_in(db, plan)).outcomes
        if enough := reached_floor(plan, outcomes, run):
            print_notice(enough)
            break
        longest_time(plan, outcomes, run)
        await _submit_run(run, plan, db, options)
        outcomes = (await _trial_in(db, plan)).outcomes
        if outcomes and outcomes[-1].status == OVER_LIMIT:
            longest_time(plan, outcomes, run)
        if outcomes and outcomes[-1].status == INTERRUPTED:
            raise StoppedTrialError(f"run {run.number} was interrupted.")
    return 1 if failures((await _trial_in(db, plan)).outcomes) else 0


async def _submit_run(run: TrialRun, plan: TrialPlan, db: Path, options: TrialOptions) -> None:
    """Do one run in an allocation. Raises TrialError if its outcome is unknown."""
    placement, host = run.placement, ThisMachine()
    salloc = (
        f"--nodes={placement.nodes}",
        f"--gpus-per-node={placement.gpus_per_node}",
        f"--ntasks-per-node={plan.ntasks_per_node or placement.gpus_per_node}",
        *(plan.salloc or ()),
    )

    def waiting(job_id: str, reason: str) -> None:
        print_notice(f"run {run.number} of {len(plan.runs)}, {run}: job {job_id} is waiting: {reason}")

    begun, before = time.time(), len((await _trial_in(db, plan)).outcomes)
    try:
        async with allocated(host, salloc, waiting, "gswarm-trial") as allocation:
            words = [sys.executable, "-P", "-m", "gswarm_tui", "trial", f"--trial={plan.trial_id}"]
            words += [f"--only={run.number}", f"--job={allocation.job.job_id}", f"--db={db}"]
            words += [word for word in options.words if not word.startswith(("--db=", "--job="))]
            variables = [f"{name}={value}" for name, value in allocation.environ.items()]
            async with kept(host, ["env", *variables, *words], passes_output=True, grace_s=0) as command:
                status = await command.wait()
    except ProfileError as error:
        reason = str(error).rstrip(".")
        outcome = RunOutcome(plan.trial_id, run, REFUSED, begun, 0.0, reason=reason)
        text = f"run {run.number} of {len(plan.runs)}, {run}: {REFUSED}: {reason}"
        print_notice(text)
        add_event(db, TRIAL_RUN, text, outcome.to_json())
        return
    if status and len((await _trial_in(db, plan)).outcomes) == before:
        raise StoppedTrialError(f"run {run.number} ended without an outcome, with exit status {status}.")


async def _trial_in(db: Path, plan: TrialPlan) -> RecordedTrial:
    """Return the trial as it is recorded in a file. Raises UserError, StoreError."""

    def read() -> RecordedTrial:
        with contextlib.closing(open_source(db, os.environ)) as source:
            return next(one for one in load_trials(source) if one.plan.trial_id == plan.trial_id)

    return await asyncio.to_thread(read)
