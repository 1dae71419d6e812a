"""Carries out intents, the only way to change a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gswarm_agent.frame import INFO
from gswarm_agent.mark import checked
from gswarm_agent.metrics import COUNTERS, known_groups
from gswarm_tui.asking.asking import AskError, Asking
from gswarm_tui.common.errors import quote
from gswarm_tui.control import intents
from gswarm_tui.control.intents import Intent, IntentError
from gswarm_tui.fleet import events
from gswarm_tui.fleet.node import Standing
from gswarm_tui.fleet.session_texts import SessionNameError
from gswarm_tui.fleet.sessions import Session, suggest_name
from gswarm_tui.link.hub import Hub
from gswarm_tui.link.tracing import TraceChoice, TraceError

CLOCK_TOLERANCE_S = 1.0
"""People type whole seconds, and a request takes a moment."""
MAX_NAMED = 6


class Executor:
    """Carries out intents; ``recorded`` is whether the recorder records, ``asking`` asks its job."""

    def __init__(self, hub: Hub, *, recorded: bool, asking: Asking | None = None) -> None:
        self._hub = hub
        self._asking = asking
        self._recorded = recorded

    def carry_out(self, intent: Intent) -> dict[str, Any]:
        """Carry out an intent and return its result. Raises IntentError, with nothing changed.

        StopRecording and Detach are only checked: the caller decides when the recorder ends.
        """
        try:
            return self._carry_out(intent)
        except (SessionNameError, TraceError, AskError) as error:
            raise IntentError(str(error)) from None

    def _carry_out(self, intent: Intent) -> dict[str, Any]:
        match intent:
            case intents.StartSession():
                return self._start_session(intent)
            case intents.StopSession():
                return self._stop_session(intent)
            case intents.UndoStop():
                return self._undo_stop(intent)
            case intents.ChangeSession():
                return self._change_session(intent)
            case intents.SetMark():
                return self._mark(intent)
            case intents.DismissFinding():
                return self._dismiss(intent)
            case intents.LogEvent():
                self._require_recording("no event logged")
                self._hub.log(intent.kind, intent.text, intent.detail or None)
                return {}
            case intents.ChangeInterval():
                self._hub.set_interval(intent.interval_ms)
                return {"interval_ms": self._hub.fleet.interval_ms}
            case intents.ChangeMetrics():
                if COUNTERS in intent.groups and self._hub.counters_refusal:
                    raise IntentError(self._hub.counters_refusal)
                self._hub.set_metrics(known_groups(intent.groups))
                return {"groups": list(self._hub.fleet.metrics)}
            case intents.StartTrace() | intents.CancelTrace():
                return self._trace(intent)
            case intents.AskJob():
                self._require_recording("the job isn't asked")
                if self._asking is None:
                    raise IntentError("simulated nodes have no processes to ask")
                return self._asking.start(tuple(map(str, intent.steps)), force=intent.force is True)
            case intents.StopRecording():
                return {"ending": True}
            case intents.Detach():
                self._require_recording("this recorder ends with its screen")
                return {}
        raise IntentError(f"{intent.want} is unknown")

    def _start_session(self, intent: intents.StartSession) -> dict[str, Any]:
        self._require_recording("no session started")
        book = self._hub.fleet.sessions
        name = (intent.name or suggest_name(session.name for session in book.sessions.values())).strip()
        self._hub.fleet.sessions.check_name(name)
        now, at = self._hub.now(), self._time(intent.started_at)
        session_id = str(self._hub.next_session)
        self._hub.next_session += 1
        started_at = now if at is None else at
        self._hub.publish(events.SessionStarted(session_id, now, name, started_at, intent.note))
        return session_row(book.sessions[session_id], now)

    def _stop_session(self, intent: intents.StopSession) -> dict[str, Any]:
        self._require_recording("no session stopped")
        now, at = self._hub.now(), self._time(intent.ended_at)
        ended_at = now if at is None else at
        stopped = self._running(intent.session)
        for session in stopped:
            if session.started_at > ended_at or (at is not None and session.started_at == at):
                raise IntentError(f"{quote(session.name)} starts at this time or later; name a later end")
        for session in stopped:
            self._hub.publish(events.SessionStopped(session.session_id, now, ended_at))
        return self.stopped([int(session.session_id) for session in stopped])

    def stopped(self, numbers: list[int]) -> dict[str, Any]:
        """Return ended sessions; ``provisional`` while a live node's last sample or energy isn't in."""
        now, rows = self._hub.now(), []
        for number in numbers:
            session = self._hub.fleet.sessions.sessions[str(number)]
            row = session_row(session, now)
            awaited = any(
                node.standing(now) is Standing.LIVE and (node.complete_until or now) < session.until
                for node in self._hub.fleet.nodes.values()
            )
            rows.append({**row, "provisional": awaited})
        return {"stopped": rows}

    def _undo_stop(self, intent: intents.UndoStop) -> dict[str, Any]:
        session = self._hub.fleet.sessions.sessions.get(intent.session_id)
        if session is None:
            raise IntentError(f"there is no session {quote(intent.session_id)}")
        if session.running:
            raise IntentError(f"{quote(session.name)} is running")
        self._hub.fleet.sessions.check_name(session.name)
        self._hub.publish(events.StopUndone(session.session_id, self._hub.now()))
        return session_row(session, self._hub.now())

    def _change_session(self, intent: intents.ChangeSession) -> dict[str, Any]:
        self._require_recording("no session changed")
        session = self._session(intent.session)
        name = None if intent.name is None else intent.name.strip()
        if name is not None and session.running:
            self._hub.fleet.sessions.check_name(name, session)
        self._hub.publish(events.SessionChanged(session.session_id, self._hub.now(), name, intent.note))
        return session_row(session, self._hub.now())

    def _mark(self, intent: intents.SetMark) -> dict[str, Any]:
        self._require_recording("no mark set")
        name, detail = checked(intent.name, intent.values)
        at = self._time(intent.at)
        mark = events.EventLogged(self._hub.now() if at is None else at, "mark", INFO, name, detail=detail)
        self._hub.publish(mark)
        return {"name": name, "at": mark.at}

    def _dismiss(self, intent: intents.DismissFinding) -> dict[str, Any]:
        if (finding := self._hub.fleet.findings.get(intent.finding_id)) is None:
            raise IntentError(f"there is no finding {quote(intent.finding_id)}")
        changed = replace(finding, dismissed=intent.dismissed)
        self._hub.publish(events.FindingChanged(self._hub.now(), changed))
        return {"dismissed": changed.dismissed}

    def _trace(self, intent: intents.StartTrace | intents.CancelTrace) -> dict[str, Any]:
        self._require_recording("no trace requested")
        if self._hub.tracing is None:
            raise IntentError("simulated nodes have no processes to trace")
        if isinstance(intent, intents.CancelTrace):
            self._hub.tracing.cancel()
            return {}
        choice = TraceChoice(intent.duration_ms, tuple(intent.ranks), intent.stacks, intent.max_mib)
        return self._hub.tracing.start(choice)

    def _require_recording(self, consequence: str) -> None:
        if not self._recorded:
            raise IntentError(f"{consequence}: nothing is recorded; start gswarm-tui without --no-record")

    def _time(self, at: float | None) -> float | None:
        """Return a time inside the recording. Raises IntentError for one outside."""
        if at is None:
            return None
        start, end = self._hub.started_at, self._hub.now()
        if not start - CLOCK_TOLERANCE_S <= at <= end + CLOCK_TOLERANCE_S:
            when = f"{start - at:.0f} s before its start" if at < start else f"{at - end:.0f} s in the future"
            raise IntentError(f"the time isn't in the recording: it is {when}")
        return min(max(at, start), end)

    def _running(self, wanted: str | int | None) -> list[Session]:
        """Return the running session with this name or number, all if None. Raises IntentError."""
        running = self._hub.fleet.sessions.running
        if wanted is None and not running:
            raise IntentError("no session is running")
        if wanted is None:
            return running
        others = f"; running: {_list_names(running)}" if running else "; no session is running"
        session = self._session(wanted, others)
        if not session.running:
            raise IntentError(f"{quote(session.name)} has already ended{others}")
        return [session]

    def _session(self, wanted: str | int, others: str = "") -> Session:
        """Return the running or newest session with this name, else the one with this number."""
        sessions = self._hub.fleet.sessions.sessions
        if named := [session for session in sessions.values() if session.name == wanted]:
            return max(named, key=lambda session: (session.running, session.started_at))
        if (numbered := sessions.get(str(wanted))) is not None:
            return numbered
        if sessions and not others:
            others = f"; there are {_list_names(list(sessions.values()))}"
        raise IntentError(f"there is no session {quote(str(wanted))}{others}")


def session_row(session: Session, now: float) -> dict[str, Any]:
    """Return a session as values of a message: Unix times, seconds, %, W of one GPU, J of all.

    Its ``session_id`` is its number in the recording.
    """
    return {
        "session_id": int(session.session_id),
        "name": session.name,
        "started_at": session.started_at,
        "ended_at": session.ended_at,
        "duration_s": rounded(session.seconds(now)),
        "note": session.note,
        "mean_util_pct": rounded(session.mean_util),
        "mean_power_w": rounded(session.mean_power_w),
        "energy_j": rounded(session.energy_j),
    }


def rounded(value: float | None) -> float | None:
    """Return a figure with three decimals, which is finer than it can be measured."""
    return None if value is None else round(value, 3)


def _list_names(sessions: list[Session]) -> str:
    names = ", ".join(session.name for session in sessions[-MAX_NAMED:])
    more = len(sessions) - MAX_NAMED
    return f"{names} and {more} more" if more > 0 else names
