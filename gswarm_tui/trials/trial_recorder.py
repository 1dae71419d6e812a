"""Access to the recorder of a trial, which runs in another process and may be restarted meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from gswarm_agent.redact import redact
from gswarm_tui.control.client import (
    Head,
    RefusedIntentError,
    RequestError,
    carry_out,
    list_sessions,
    running_heads,
)
from gswarm_tui.control.head_source import HeadSource
from gswarm_tui.control.intents import Intent, LogTrial, StartSession, StopSession
from gswarm_tui.fleet.session_texts import MAX_NOTE
from gswarm_tui.fleet.trial_kinds import TRIAL_PLANNED, TRIAL_RUN, TRIAL_RUN_STARTED
from gswarm_tui.profiling.profile_run import command_line
from gswarm_tui.trials.cost import StoppedTrialError
from gswarm_tui.trials.outcome import RunOutcome
from gswarm_tui.trials.plan import TrialError, TrialPlan, TrialRun
from gswarm_tui.trials.recorded import RecordedTrial, load_trials

RESTARTED_WITHIN_S, RETRY_S = 30.0, 0.2
"""Longest wait for a recorder that is being restarted, and the time between two attempts."""

T = TypeVar("T")


class TrialRecorder:
    """Sends a trial's sessions and events to the recorder of the recording with this uid."""

    def __init__(self, uid: str, environ: Mapping[str, str]) -> None:
        self._uid = uid
        self._environ = environ
        self._waits = True

    def stop_waiting(self) -> None:
        """Send each request only once from now on, as the trial ends."""
        self._waits = False

    async def log_plan(self, plan: TrialPlan) -> None:
        """Log the plan, without secrets of its command. Raises TrialError."""
        await self._carry_out(LogTrial(TRIAL_PLANNED, *plan_texts(plan)))

    async def log_started(self, plan: TrialPlan, run: TrialRun) -> None:
        """Log that a run starts. Raises TrialError."""
        detail = {"trial_id": plan.trial_id, "run": run.number, "session": run.session}
        text = f"run {run.number} of {len(plan.runs)} starts: {run}"
        await self._carry_out(LogTrial(TRIAL_RUN_STARTED, text, json.dumps(detail)))

    async def log_outcome(self, outcome: RunOutcome, text: str) -> None:
        """Log the outcome of a run. Raises TrialError."""
        await self._carry_out(LogTrial(TRIAL_RUN, text[:MAX_NOTE], outcome.to_json()))

    async def start_session(self, name: str, note: str) -> dict[str, Any]:
        """Start a session, and return it with its times as Unix times. Raises TrialError."""
        return await self._carry_out(StartSession(name, note=note))

    async def stop_session(self, name: str, ended_at: float | None = None) -> None:
        """Stop a session now or in the past, if it runs and the recorder does."""
        with contextlib.suppress(TrialError):
            await self._carry_out(StopSession(name, ended_at))

    async def stop_sessions(self, ends: Mapping[str, float]) -> None:
        """Stop the running sessions that a killed trial left, by name, at these times. Raises TrialError."""
        for session in await self._request(list_sessions):
            if session["ended_at"] is None and (end := ends.get(session["name"])) is not None:
                await self.stop_session(session["name"], max(end, session["started_at"]))

    async def trial(self, trial_id: str) -> tuple[Path, RecordedTrial | None]:
        """Return the recording's file, and the trial if it has it. Raises TrialError, StoreError."""

        def read(head: Head) -> tuple[Path, RecordedTrial | None]:
            assert head.path is not None  # noqa: S101 - it records
            with contextlib.closing(HeadSource(head, head.path)) as source:
                found = [one for one in load_trials(source) if one.plan.trial_id == trial_id]
            return head.path, found[0] if found else None

        return await self._request(read)

    async def _carry_out(self, intent: Intent) -> dict[str, Any]:
        return await self._request(lambda head: carry_out(head, intent))

    async def _request(self, request: Callable[[Head], T]) -> T:
        """Send a request, again if the recorder is being restarted. Raises TrialError, StoppedTrialError."""
        deadline = time.monotonic() + RESTARTED_WITHIN_S
        why = "it has ended"
        while True:
            for head in await asyncio.to_thread(running_heads, self._environ):
                if head.uid == self._uid:
                    try:
                        return await asyncio.to_thread(request, head)
                    except RefusedIntentError as error:
                        raise TrialError(f"the recorder refused a step of the trial: {error}.") from None
                    except RequestError as error:
                        why = str(error)
            if not self._waits or time.monotonic() > deadline:
                break
            await asyncio.sleep(RETRY_S)
        self.stop_waiting()
        raise StoppedTrialError(f"the recorder of this trial doesn't answer: {why}.")


def plan_texts(plan: TrialPlan) -> tuple[str, str]:
    """Return the message and the details of the event of a plan, without secrets of its command."""
    shown = replace(plan, command=tuple(redact(plan.command)))
    return command_line(plan.command)[:MAX_NOTE], shown.to_json()
