"""Runs a trial's command under each placement, one after the other, within a Slurm job.

Each run is a step of the job and a session of the recording. A step ends with this program, even if that is
killed (``profiling/slurm_host.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import IO

from gswarm_tui.common.errors import print_notice, printable, quote
from gswarm_tui.common.quantities import duration, plural
from gswarm_tui.profiling.allocation import Allocation, find_job
from gswarm_tui.profiling.slurm_host import ProfileError, ThisMachine, kept, with_errors
from gswarm_tui.slurm.hosts import fold
from gswarm_tui.slurm.jobs import JOB_REQUEUED, NODE_FAILED, Slurm
from gswarm_tui.trials.cost import (
    TIMEOUT_OPTION,
    StoppedTrialError,
    expected_cost,
    longest_time,
    reached_floor,
)
from gswarm_tui.trials.outcome import (
    FAILED,
    INTERRUPTED,
    NODE_LOST,
    OK,
    OVER_LIMIT,
    REFUSED,
    REQUEUED,
    TIMEOUT,
    RunOutcome,
    failures,
)
from gswarm_tui.trials.plan import AvailableNodes, TrialError, TrialPlan, TrialRun
from gswarm_tui.trials.recorded import RecordedTrial
from gswarm_tui.trials.trial_recorder import TrialRecorder

LONGEST_LINE = 64 * 1024
"""Bytes of a line in which a throughput is looked for."""
READ_EVERY_S = 0.5
_LAST_LINES = 30
_STEP_VARIABLES = (
    "SLURM_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_GPUS_PER_TASK",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_TRES_PER_TASK",
)
"""Variables of the job's own request, which srun would apply to the step and which contradict a placement."""
_REQUEUED = re.compile(r"\bDUE TO JOB REQUEUE\b")
_NODE_LOST = re.compile(r"\bNode failure on (\S+)|\bDUE TO NODE FAILURE\b")
_CANCELLED = re.compile(r"\*\*\* (STEP|JOB) \S+ ON \S+ CANCELLED AT ")
_REFUSED = re.compile(r"\bUnable to create step for job \S+: (.+)")
_TOO_FEW_CPUS = "More processors requested than permitted"
"""Texts of slurmstepd and srun, from Slurm's sources."""
_SEPARATED = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?|[+-]?\d{1,3}(?:[ '_]\d{3})+(?:\.\d+)?")
_WHOLE, _MORE = re.compile(r"[+-]?\d{1,3}(?:,\d{3})*"), re.compile(r"(?:,\d{3})+(?!\d)(?:\.\d+)?")
"""Numbers with separated thousands; the beginning of one, and its rest."""
_SLURM_LINE = re.compile(r"^(srun|slurmstepd)\S*: ")


def available_nodes(allocation: Allocation) -> AvailableNodes:
    """Return the nodes of a job, with the GPUs that it has on each."""
    job = allocation.job
    return AvailableNodes({node: len(job.gpus.get(node, ())) for node in job.nodes}, job.label)


class TrialDriver:
    """Runs what is left of a trial within a job; ``folder`` is for the output of the runs."""

    def __init__(self, plan: TrialPlan, recorder: TrialRecorder, folder: Path) -> None:
        self._host = ThisMachine()
        self._plan = plan
        self._recorder = recorder
        self._folder = folder
        self._outcomes: list[RunOutcome] = []

    async def run(self, job_id: str, runs: Sequence[TrialRun], outcomes: Sequence[RunOutcome]) -> int:
        """Do these runs, which follow those with outcomes; return how many runs of the trial failed.

        Raises:
            StoppedTrialError: the trial ended before its last run.
            TrialError, ProfileError: it can't be run here.
        """
        self._outcomes = list(outcomes)
        allocation = await find_job(self._host, job_id)
        ends = {one.run.session: one.started_at + one.wall_s for one in outcomes}
        await self._recorder.stop_sessions({run.session: 0.0 for run in self._plan.runs} | ends)
        for run in runs:
            if enough := reached_floor(self._plan, self._outcomes, run):
                print_notice(enough)
                break
            limit_s, why = longest_time(self._plan, self._outcomes, run)
            outcome = await self._run(run, allocation, limit_s, why)
            ended = "" if outcome.ok else await self._why_ended(job_id)
            if ended and outcome.status in (FAILED, REFUSED):
                outcome = replace(outcome, reason=ended.rstrip("."))
                if self._plan.salloc is None:  # the job's end, not the placement's failure
                    outcome = await _interrupted(outcome)
            self._outcomes.append(outcome)
            await self._recorder.log_outcome(outcome, self._describe(outcome))
            print_notice(self._describe(outcome) + self._describe_left())
            if ended:
                raise StoppedTrialError(ended)
            if outcome.status == OVER_LIMIT and self._plan.salloc is None:
                longest_time(self._plan, self._outcomes, run)
            if outcome.ok and self._plan.floor is not None and self._plan.throughput_mark is not None:
                await self._read_marks()
        return failures(self._outcomes)

    async def _why_ended(self, job_id: str) -> str:
        """Return a sentence if the job no longer runs, else an empty text."""
        try:
            await find_job(self._host, job_id)
        except ProfileError as error:
            return str(error)
        return ""

    async def _read_marks(self) -> None:
        """Read the throughputs of marks, once the last outcome is on disk."""
        while True:
            _, trial = await self._recorder.trial(self._plan.trial_id)
            if trial is not None and len(trial.outcomes) >= len(self._outcomes):
                self._outcomes = list(trial.outcomes)
                return
            await asyncio.sleep(READ_EVERY_S)

    async def _run(
        self, run: TrialRun, allocation: Allocation, limit_s: float | None, why: str
    ) -> RunOutcome:
        """Do one run, whatever its end."""
        fitting = available_nodes(allocation).with_gpus(run.placement.gpus_per_node)
        nodes = fitting[: run.placement.nodes]
        if len(nodes) < run.placement.nodes:
            raise StoppedTrialError(
                f"run {run.number} needs {run.placement}; job {allocation.job.label} has "
                f"{plural(len(fitting), 'such node')}."
            )
        await self._recorder.log_started(self._plan, run)
        session = await self._recorder.start_session(run.session, f"{run} on {fold(nodes)}")
        begun = time.monotonic()
        output = RunOutput(self._folder / self._output_name(run), self._plan.throughput, print_notice)
        status: int | None = None
        interrupted: asyncio.CancelledError | None = None
        try:
            async with kept(self._host, self._words(run, nodes, allocation), grace_s=0) as command:
                async with asyncio.timeout(limit_s):
                    while data := await command.read():
                        output.add(data)
                    status = await command.wait()
                    wall_s = time.monotonic() - begun
        except TimeoutError:
            wall_s = time.monotonic() - begun
        except asyncio.CancelledError as error:
            interrupted, wall_s = error, time.monotonic() - begun
        finally:
            output.close()
        stopping = asyncio.ensure_future(self._recorder.stop_session(session["name"]))
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError as error:
            interrupted = error
            await stopping
        if interrupted is not None:
            end, reason = INTERRUPTED, "the trial was interrupted"
        elif status is None:
            end = TIMEOUT if why == TIMEOUT_OPTION else OVER_LIMIT
            reason = f"it was ended by {why} after {duration(limit_s or 0)}"
        else:
            end, reason = classify(status, output.last_lines, output.why_no_throughput)
        outcome = RunOutcome(
            self._plan.trial_id,
            run,
            end,
            session["started_at"],
            wall_s,
            nodes,
            output.throughput,
            status,
            reason,
            allocation.job.label,
        )
        if interrupted is not None:
            outcome = await _interrupted(outcome)
            with contextlib.suppress(TrialError):  # the recorder may have ended before
                await asyncio.shield(self._recorder.log_outcome(outcome, self._describe(outcome)))
            raise interrupted
        return outcome

    def _words(self, run: TrialRun, nodes: Sequence[str], allocation: Allocation) -> list[str]:
        placement = run.placement
        ranks = self._plan.ntasks_per_node or max(1, placement.gpus_per_node)
        step = allocation.step(
            f"--nodes={placement.nodes}",
            f"--nodelist={','.join(nodes)}",
            f"--ntasks={placement.nodes * ranks}",
            f"--ntasks-per-node={ranks}",
            f"--gpus-per-node={placement.gpus_per_node}",
            "--input=none",
            "--unbuffered",
            "--job-name=gswarm-trial",
            *self._plan.srun,
        )
        without = [word for name in _STEP_VARIABLES for word in ("-u", name)]
        return with_errors(["env", *without, *step[1:], *self._plan.command])

    def _output_name(self, run: TrialRun) -> str:
        digits = len(str(len(self._plan.runs)))
        return f"{run.number:0{digits}}-{run.session.removeprefix('trial-')}.log"

    def _describe(self, outcome: RunOutcome) -> str:
        run = outcome.run
        how = f"took {duration(outcome.wall_s)}" if outcome.ok else outcome.status.replace("_", " ")
        if outcome.throughput is not None:
            how += f", throughput {outcome.throughput:.4g}"
        if outcome.reason:
            how += f": {outcome.reason} (output: {self._folder / self._output_name(run)})"
        return f"run {run.number} of {len(self._plan.runs)}, {run}: {how}"

    def _describe_left(self) -> str:
        """Return a clause on the cost that is still to come, empty after the last run."""
        left = RecordedTrial(self._plan, tuple(self._outcomes)).left
        cost = expected_cost(self._plan, left, self._outcomes)
        if not left or cost is None:
            return ""
        about = "at most" if cost.bound else "about"
        return f"; {len(left)} left, {about} {cost.gpu_hours:.3g} GPU-hours in {duration(cost.seconds)}"


async def _interrupted(outcome: RunOutcome) -> RunOutcome:
    """Return the outcome of an interrupted run, with Slurm's reason if the job ends."""
    why = await asyncio.to_thread(Slurm().why_ending, outcome.job)
    status = {JOB_REQUEUED: REQUEUED, NODE_FAILED: NODE_LOST}.get(why, INTERRUPTED)
    return replace(outcome, status=status, reason=why or outcome.reason)


class RunOutput:
    """The output of a run: written to a file, and searched for throughputs and for the last lines."""

    def __init__(self, path: Path, pattern: str | None, say: Callable[[str], None]) -> None:
        self._path = path
        self._say = say
        self._pattern = None if pattern is None else re.compile(pattern)
        self._rest = b""
        self._found: list[float] = []
        self._unread = self._cut = ""
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._file: IO[bytes] | None = None
        try:
            path.parent.mkdir(exist_ok=True)
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            self._give_up(error)

    @property
    def throughput(self) -> float | None:
        """The median of the numbers that the pattern found, None unless above 0, or if one was cut short."""
        found = median(self._found) if self._found and not self._cut else 0.0
        return found if found > 0 else None

    @property
    def why_no_throughput(self) -> str:
        """Why no throughput can be read, as a clause; empty if one was, or none is looked for."""
        if self._pattern is None:
            return ""
        if self._cut:
            return (
                f"--throughput matched only the beginning of {quote(self._cut)}: match commas, too, as in "
                "([0-9.,]+)"
            )
        if self._found:
            return "" if self.throughput else "--throughput needs numbers above 0; their median isn't"
        if self._unread:
            return f"--throughput matched {quote(self._unread)}, which isn't a number"
        return f"it printed no number that matches --throughput {printable(self._pattern.pattern)}"

    def add(self, data: bytes) -> None:
        """Add what the command wrote next."""
        if self._file is not None:
            try:
                self._file.write(data)
            except OSError as error:
                self._give_up(error)
        *lines, self._rest = re.split(rb"[\r\n]", self._rest + data)
        for line in lines if self._pattern else lines[-_LAST_LINES:]:
            self._read(line)
        self._rest = self._rest[-LONGEST_LINE:]

    def close(self) -> None:
        """Read the last line, and close the file."""
        self._read(self._rest)
        if self._file is not None:
            self._file.close()

    def _read(self, line: bytes) -> None:
        if not line.strip():
            return
        text = line[-LONGEST_LINE:].decode("utf-8", "replace")
        self.last_lines.append(text)
        for match in () if self._pattern is None else self._pattern.finditer(text):
            found, rest = match[1] or "", text[match.end(1) :]
            if _WHOLE.fullmatch(found) and (more := _MORE.match(rest)):
                self._cut = found + more[0]
            if (number := read_number(found)) is None:
                self._unread = found
            else:
                self._found.append(number)

    def _give_up(self, error: OSError) -> None:
        self._say(f"the output isn't kept: {self._path}: {error.strerror}")
        self._file = None


def read_number(text: str) -> float | None:
    """Return a finite number, whose thousands may be separated: "1,000.5". None for any other text."""
    text = text.strip().rstrip(",.;")  # of the sentence
    if _SEPARATED.fullmatch(text):
        text = re.sub(r"[,_' ]", "", text)
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def classify(status: int, last_lines: Sequence[str], why_no_throughput: str) -> tuple[str, str]:
    """Return how a run ended, by its exit status and last lines of output, and the reason unless it is ok.

    ``why_no_throughput`` is a clause on a throughput that a run without an error lacks, else empty.
    """
    # srun's status may be 0 after the end of its job.
    slurm = "\n".join(line for line in last_lines if _SLURM_LINE.match(line))
    if _REQUEUED.search(slurm):
        return REQUEUED, JOB_REQUEUED
    if lost := _NODE_LOST.findall(slurm):
        return NODE_LOST, f"{max(lost) or 'a node'} failed"
    if refused := _REFUSED.search(slurm):
        why = printable(refused[1].strip())
        if why == _TOO_FEW_CPUS:
            why = (
                "the job has fewer CPUs on a node than ranks; allocate the job with --ntasks-per-node, or "
                "start one rank on each node with --ntasks-per-node 1"
            )
        return REFUSED, f"Slurm refused the step: {why}"
    if status == 0 and _CANCELLED.search(slurm):
        return FAILED, "the step was cancelled"
    if status == 0:
        return (FAILED, why_no_throughput) if why_no_throughput else (OK, "")
    said = [line.strip() for line in last_lines if not _SLURM_LINE.match(line)] or [
        _SLURM_LINE.sub("", line.strip()).removeprefix("error: ") for line in last_lines
    ]
    last = f": {printable(said[-1][:200].rstrip('.'))}" if said else ""
    return FAILED, f"exit status {status}{last}"
