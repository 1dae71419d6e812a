"""Intents: requests to change a running head, from commands, viewers and HTTP clients.

Each checks its values when it is created, on both ends of a connection. Types are those of this program's own
clients. ``execution.py`` carries the intents out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

from gswarm_agent.mark import MarkError, Value, checked
from gswarm_agent.metrics import ALL_GROUPS, MAX_INTERVAL_MS, MIN_INTERVAL_MS
from gswarm_tui.common.errors import UserError
from gswarm_tui.fleet.session_texts import SessionNameError, check_name, check_note

MAX_RANKS = 4096
MAX_TIME = 1e11
"""Latest Unix time in seconds; also excludes NaN and infinity."""


class IntentError(Exception):
    """Raised for an invalid intent, or one that a recorder can't carry out; the message is one clause."""


class RecorderError(UserError):
    """Raised if a recorder can't be reached or fails; the message is one clause."""

    exit_status = 1


class RefusedError(RecorderError):
    """Raised for a request that a recorder refused: to repeat it won't help."""


@dataclass(frozen=True)
class Intent:
    """Base of all intents; ``want`` names its kind in messages."""

    want: ClassVar[str]

    def __post_init__(self) -> None:
        try:
            self._check()
        except (SessionNameError, MarkError) as error:
            raise IntentError(str(error)) from None

    def _check(self) -> None:
        """Raise IntentError, SessionNameError or MarkError for values that no recorder accepts."""

    def message(self) -> dict[str, Any]:
        """Return the intent as a message; ``read_intent`` is the inverse."""
        return {"want": self.want} | asdict(self)


@dataclass(frozen=True)
class StartSession(Intent):
    """Start a session; its name is suggested if None, its start is now if None (Unix time)."""

    want = "start_session"
    name: str | None = None
    started_at: float | None = None
    note: str = ""

    def _check(self) -> None:
        _check_name(self.name)
        _check_time(self.started_at)
        check_note(self.note)


@dataclass(frozen=True)
class StopSession(Intent):
    """End a session, all running ones if None; now if ``ended_at`` is None.

    A text is the session's name or number, a whole number only its number. With ``wait``, the reply comes
    when the samples at the end are in, after at most two seconds.
    """

    want = "stop_session"
    session: str | int | None = None
    ended_at: float | None = None
    wait: bool = False

    def _check(self) -> None:
        _check_time(self.ended_at)


@dataclass(frozen=True)
class UndoStop(Intent):
    """Continue a stopped session as if it had never been stopped."""

    want = "undo_stop"
    session_id: str


@dataclass(frozen=True)
class ChangeSession(Intent):
    """Change the name or the note of a session, named as for StopSession; None leaves it."""

    want = "change_session"
    session: str | int
    name: str | None = None
    note: str | None = None

    def _check(self) -> None:
        _check_name(self.name)
        check_note(self.note or "")


@dataclass(frozen=True)
class SetMark(Intent):
    """Set a mark now, or at a past Unix time."""

    want = "mark"
    name: str
    values: Mapping[str, Value] = field(default_factory=dict)
    at: float | None = None

    def _check(self) -> None:
        checked(self.name, self.values)
        _check_time(self.at)


@dataclass(frozen=True)
class DismissFinding(Intent):
    """Dismiss a finding in this recording, or show it again."""

    want = "dismiss_finding"
    finding_id: str
    dismissed: bool = True


@dataclass(frozen=True)
class LogEvent(Intent):
    """Log an event of a trial or a profiler's run; ``detail`` is a JSON object, empty for none."""

    want = "log_event"
    kind: str
    text: str
    detail: str = ""

    def _check(self) -> None:
        check_note(self.text)


@dataclass(frozen=True)
class ChangeInterval(Intent):
    """Change the sampling interval of all nodes."""

    want = "interval"
    interval_ms: int

    def _check(self) -> None:
        if not MIN_INTERVAL_MS <= self.interval_ms <= MAX_INTERVAL_MS:
            raise IntentError(
                f"an interval must be {MIN_INTERVAL_MS} to {MAX_INTERVAL_MS} ms, a whole number"
            )


@dataclass(frozen=True)
class ChangeMetrics(Intent):
    """Measure only these groups of metrics on all nodes."""

    want = "metrics"
    groups: tuple[str, ...]

    def _check(self) -> None:
        if any(group not in ALL_GROUPS for group in self.groups):
            raise IntentError(f"unknown metric groups; choose from {', '.join(ALL_GROUPS)}")


@dataclass(frozen=True)
class StartTrace(Intent):
    """Trace the PyTorch processes of these ranks, all without any."""

    want = "start_trace"
    duration_ms: int = 500
    ranks: tuple[int, ...] = ()
    stacks: bool = False
    max_mib: int = 512

    def _check(self) -> None:
        if len(self.ranks) > MAX_RANKS:
            raise IntentError(f"a trace can have {MAX_RANKS:,} ranks")
        for what, number, low, high in (
            ("a trace's duration in ms", self.duration_ms, 1, 60_000),
            ("a trace's limit in MiB", self.max_mib, 1, 65_536),
            *(("a rank", rank, 0, 10**9) for rank in self.ranks),
        ):
            if not low <= number <= high:
                raise IntentError(f"{what} must be a whole number from {low:,} to {high:,}")


@dataclass(frozen=True)
class CancelTrace(Intent):
    """End the trace that is under way."""

    want = "cancel_trace"


@dataclass(frozen=True)
class AskJob(Intent):
    """Ask the job which rank is behind, by these steps, all without any.

    With ``force``, also where a step could harm the job.
    """

    want = "ask_job"
    steps: tuple[str, ...] = ()
    force: bool = False


@dataclass(frozen=True)
class StopRecording(Intent):
    """End the recorder and close its recording; a command that ``record`` runs continues."""

    want = "stop_recording"
    why: str = "the recording was ended by gswarm-tui recording stop"

    def _check(self) -> None:
        check_note(self.why)


@dataclass(frozen=True)
class Detach(Intent):
    """Let the recorder go on without a screen, until its job ends or StopRecording."""

    want = "detach"


INTENTS: dict[str, type[Intent]] = {kind.want: kind for kind in Intent.__subclasses__()}


def read_intent(message: Mapping[str, Any]) -> Intent | None:
    """Return the intent of a message; None for a message of another kind. Raises IntentError."""
    want = message.get("want")
    if not isinstance(want, str) or (kind := INTENTS.get(want)) is None:
        return None
    given = {key: value for key, value in message.items() if key not in ("want", "version")}
    if unknown := given.keys() - {each.name for each in fields(kind)}:
        raise IntentError(f"{want} takes no {min(map(str, unknown))}")
    try:
        return kind(**given)
    except (TypeError, AttributeError):
        raise IntentError(f"{want} lacks a required value, or has one of another type") from None


def _check_name(name: str | None) -> None:
    if name is not None:
        if not name.strip():
            raise IntentError("a session needs a name")
        check_name(name)


def _check_time(time: float | None) -> None:
    if time is not None and not 0 <= time < MAX_TIME:
        raise IntentError("a time must be a number of seconds since 1970")
