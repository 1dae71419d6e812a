"""Access to the recorder of a trial, which runs in another process and may be restarted meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
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
    running_heads,
)
from gswarm_tui.control.intents import Intent, LogTrial, StartSession, StopSession
from gswarm_tui.fleet.session_texts import MAX_NOTE
from gswarm_tui.fleet.trial_kinds import TRIAL_PLANNED, TRIAL_RUN
from gswarm_tui.profiling.profile_run import command_line
from gswarm_tui.trials.outcome import RunOutcome, StoppedTrialError
from gswarm_tui.trials.plan import TrialError, TrialPlan

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

    async def log_outcome(self, outcome: RunOutcome, text: str) -> None:
        """Log the outcome of a run. Raises TrialError."""
        await self._carry_out(LogTrial(TRIAL_RUN, text[:MAX_NOTE], outcome.to_json()))

    async def start_session(self, name: str, note: str) -> dict[str, Any]:
        """Start a session, and return it with its times as Unix times. Raises TrialError."""
        return await self._carry_out(StartSession(name, note=note))

    async def stop_session(self, name: str) -> None:
        """Stop a session, if it runs and the recorder does."""
        with contextlib.suppress(TrialError):
            await self._carry_out(StopSession(name))

    async def recording(self) -> Path:
        """Return the recording's file. Raises TrialError."""

        def path(head: Head) -> Path:
            assert head.path is not None  # noqa: S101 - it records
            return head.path

        return await self._request(path)

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
