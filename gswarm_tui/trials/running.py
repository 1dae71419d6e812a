"""Runs a trial's command under each placement, one after the other, within a Slurm job.

Each run is a step of the job and a session of the recording.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from gswarm_agent.redact import redact
from gswarm_tui.common.errors import print_notice, printable
from gswarm_tui.common.quantities import duration, plural
from gswarm_tui.control.client import Head, running_heads
from gswarm_tui.control.intents import LogEvent, RecorderError, RefusedError, StartSession, StopSession
from gswarm_tui.fleet.session_texts import MAX_NOTE
from gswarm_tui.fleet.trial_kinds import TRIAL_RUN
from gswarm_tui.profiling.allocation import Allocation, find_job
from gswarm_tui.profiling.profile_run import command_line
from gswarm_tui.profiling.slurm_commands import ProfileError, kept, with_errors
from gswarm_tui.slurm.hosts import fold
from gswarm_tui.trials.outcome import (
    FAILED,
    INTERRUPTED,
    OK,
    TIMEOUT,
    RunOutcome,
    StoppedTrialError,
)
from gswarm_tui.trials.plan import TrialError, TrialPlan, TrialRun

LONGEST_LINE = 64 * 1024
"""Bytes of a line in which a throughput is looked for."""
RESTARTS_WITHIN_S = 10
"""Longest wait for a recorder that was killed."""
_LAST_LINES = 30
_STEP_VARIABLES = (
    "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK",
    "SLURM_NTASKS_PER_GPU", "SLURM_TRES_PER_TASK",
)  # fmt: skip
"""Variables of the job's own request, which srun would apply to the step and which contradict a placement."""
_SLURM_LINE = re.compile(r"^(srun|slurmstepd)\S*: (error: )?")
_NO_STEP = re.compile(r"Node failure on|DUE TO NODE FAILURE|Unable to create step")
_CANCELLED = re.compile(r"\*\*\* (STEP|JOB) \S+ ON \S+ CANCELLED AT ")
"""Texts of slurmstepd and srun, from Slurm's sources."""


def gpus_of_nodes(allocation: Allocation) -> dict[str, int]:
    """Return the number of GPUs that a job has on each of its nodes."""
    return {node: len(allocation.job.gpus.get(node, ())) for node in allocation.job.nodes}


class TrialDriver:
    """Does the runs of a trial within a job; ``folder`` is for the output of the runs."""

    def __init__(self, plan: TrialPlan, recorder: TrialRecorder, folder: Path) -> None:
        self._plan = plan
        self._recorder = recorder
        self._folder = folder

    async def run(self, job_id: str) -> int:
        """Do all runs; return how many failed.

        Raises:
            StoppedTrialError: the trial ended before its last run.
            TrialError, ProfileError: it can't be run here.
        """
        allocation = await find_job(job_id)
        outcomes: list[RunOutcome] = []
        for run in self._plan.runs:
            outcome = await self._run(run, allocation)
            outcomes.append(outcome)
            text = self._describe(outcome)
            await self._log(outcome, text)
            print_notice(text)
            if not outcome.ok:
                try:
                    await find_job(job_id)
                except ProfileError as error:  # the job has ended
                    raise StoppedTrialError(str(error)) from None
        return sum(not outcome.ok for outcome in outcomes)

    async def _run(self, run: TrialRun, allocation: Allocation) -> RunOutcome:
        """Do one run, whatever its end."""
        plan = self._plan
        gpus = gpus_of_nodes(allocation)
        fitting = [node for node, count in gpus.items() if count >= run.placement.gpus_per_node]
        nodes = tuple(fitting[: run.placement.nodes])
        if len(nodes) < run.placement.nodes:
            raise StoppedTrialError(
                f"run {run.number} needs {run.placement}; job {allocation.job.label} has "
                f"{plural(len(fitting), 'such node')}."
            )
        session = await self._recorder.carry_out(StartSession(run.session, note=f"{run} on {fold(nodes)}"))
        begun = time.monotonic()
        output = RunOutput(self._folder / self._output_name(run), plan.throughput)
        status: int | None = None
        interrupted: asyncio.CancelledError | None = None
        try:
            words = self._words(run, nodes, allocation)
            async with kept(words, grace_s=0) as command, asyncio.timeout(plan.timeout_s):
                while data := await command.read():
                    output.add(data)
                status = await command.wait()
        except TimeoutError:
            pass
        except asyncio.CancelledError as error:
            interrupted = error
        finally:
            output.close()
        wall_s = time.monotonic() - begun
        if interrupted is not None:
            end, reason = INTERRUPTED, "the trial was interrupted"
        elif status is None:
            end, reason = TIMEOUT, f"it was ended by --timeout after {duration(plan.timeout_s or 0)}"
        else:
            end, reason = classify(status, output.last_lines)
            if end == OK and plan.throughput is not None and output.throughput is None:
                end = FAILED
                reason = f"it printed no number above 0 for --throughput {printable(plan.throughput)}"
        outcome = RunOutcome(
            plan.trial_id, run, end, session["started_at"], wall_s, nodes, output.throughput, status, reason,
            allocation.job.label,
        )  # fmt: skip
        # The session may have been stopped by its user before, or the recorder has ended.
        with contextlib.suppress(TrialError):
            await self._recorder.carry_out(StopSession(session["name"]))
        if interrupted is not None:
            with contextlib.suppress(TrialError):
                await self._log(outcome, self._describe(outcome))
            raise interrupted
        return outcome

    async def _log(self, outcome: RunOutcome, text: str) -> None:
        await self._recorder.carry_out(LogEvent(TRIAL_RUN, text[:MAX_NOTE], outcome.to_json()))

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
        how = f"took {duration(outcome.wall_s)}" if outcome.ok else outcome.status
        if outcome.throughput is not None:
            how += f", throughput {outcome.throughput:.4g}"
        if outcome.reason:
            how += f": {outcome.reason} (output: {self._folder / self._output_name(run)})"
        return f"run {run.number} of {len(self._plan.runs)}, {run}: {how}"


class RunOutput:
    """The output of a run: written to a file, and searched for throughputs and for the last lines."""

    def __init__(self, path: Path, pattern: str | None) -> None:
        """Open the file. Raises TrialError."""
        self._pattern = None if pattern is None else re.compile(pattern)
        self._rest = b""
        self._found: list[float] = []
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        try:
            path.parent.mkdir(exist_ok=True)
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise TrialError(f"{path}: {error.strerror}; the output of a run is written there.") from None

    @property
    def throughput(self) -> float | None:
        """The median of the numbers that the pattern found; None if it isn't above 0."""
        found = median(self._found) if self._found else 0.0
        return found if found > 0 else None

    def add(self, data: bytes) -> None:
        """Add what the command wrote next; a full disk cuts the file, not the run."""
        with contextlib.suppress(OSError):
            self._file.write(data)
        *lines, self._rest = re.split(rb"[\r\n]", self._rest + data)
        for line in lines if self._pattern else lines[-_LAST_LINES:]:
            self._read(line)
        self._rest = self._rest[-LONGEST_LINE:]

    def close(self) -> None:
        """Read the last line, and close the file."""
        self._read(self._rest)
        self._file.close()

    def _read(self, line: bytes) -> None:
        if not line.strip():
            return
        text = line[-LONGEST_LINE:].decode("utf-8", "replace")
        self.last_lines.append(text)
        for match in () if self._pattern is None else self._pattern.finditer(text):
            with contextlib.suppress(ValueError):
                if math.isfinite(number := float(match[1] or "")):
                    self._found.append(number)


def classify(status: int, last_lines: Sequence[str]) -> tuple[str, str]:
    """Return how a run ended, by its exit status and last lines of output, and the reason unless it is ok."""
    own = [line.strip() for line in last_lines if not _SLURM_LINE.match(line)]
    slurm = [_SLURM_LINE.sub("", line.strip()) for line in last_lines if _SLURM_LINE.match(line)]
    # srun's status may be 0 after the end of its job.
    if ended := [
        line for line in slurm if _NO_STEP.search(line) or (status == 0 and _CANCELLED.search(line))
    ]:
        return FAILED, f"Slurm: {printable(ended[0])}"
    if status == 0:
        return OK, ""
    said = own or slurm
    last = f": {printable(said[-1][:200].rstrip('.'))}" if said else ""
    return FAILED, f"exit status {status}{last}"


class TrialRecorder:
    """Sends a trial's sessions and events to the recorder of the recording with this uid."""

    def __init__(self, uid: str, environ: Mapping[str, str]) -> None:
        self._uid = uid
        self._environ = environ

    async def recording(self) -> Path:
        """Return the recording's file. Raises TrialError."""
        path = (await asyncio.to_thread(self._head)).path
        assert path is not None  # noqa: S101 - it records
        return path

    async def carry_out(self, intent: LogEvent | StartSession | StopSession) -> dict[str, Any]:
        """Send an intent and return its result. Raises TrialError, StoppedTrialError."""
        try:
            return await asyncio.to_thread(lambda: self._head().carry_out(intent))
        except RefusedError as error:
            raise TrialError(f"the recorder refused a step of the trial: {error}.") from None
        except RecorderError as error:
            raise StoppedTrialError(f"a step of the trial wasn't recorded: {error}.") from None

    def _head(self) -> Head:
        """Return the recorder, which may just be restarted. Raises StoppedTrialError."""
        for _ in range(RESTARTS_WITHIN_S):
            for head in running_heads(self._environ):
                if head.uid == self._uid:
                    return head
            time.sleep(1)
        raise StoppedTrialError("the recorder of this trial has ended.")


def plan_texts(plan: TrialPlan) -> tuple[str, str]:
    """Return the message and the details of the event of a plan, without secrets of its command."""
    shown = replace(plan, command=tuple(redact(plan.command)))
    return command_line(plan.command)[:MAX_NOTE], shown.to_json()
