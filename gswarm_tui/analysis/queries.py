"""Queries that the screens run on a recording: SQL, details of sessions, comparisons, other functions."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Concatenate, ParamSpec, TypeVar

from gswarm_tui.analysis import comparison, periods
from gswarm_tui.analysis.periods import Period
from gswarm_tui.analysis.summary_data import ProcessPeaks, Summary, processes, summarize
from gswarm_tui.common.errors import UserError
from gswarm_tui.fleet.events import EventLogged
from gswarm_tui.fleet.sessions import Session
from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.store.sql.first_events import first_events

T = TypeVar("T")
P = ParamSpec("P")

MAX_ROWS = 5_000
"""Rows of a result that the screen shows."""
MAX_COUNTED = 100_000
"""Rows that are counted; larger results show "more than"."""
MAX_EVENTS = 2_000

_SAME_START_S = 1e-3
"""Tolerance in seconds when a session is found by its start."""

_EVENTS = first_events(
    "e.kind, e.severity, coalesce(e.message, ''), n.node, g.gpu_index, e.detail", "true", MAX_EVENTS
)


@dataclass(frozen=True)
class ResultPage:
    """First rows of a result and their total, None for more than ``MAX_COUNTED``.

    Values are those of DuckDB's Python client; ``seconds`` is the time of the query.
    """

    names: tuple[str, ...]
    types: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    total: int | None
    seconds: float


@dataclass(frozen=True)
class SessionDetails:
    """Summary, processes and first events (with marks) of a session."""

    summary: Summary
    processes: list[ProcessPeaks]
    events: list[EventLogged]


class RecordingQueries:
    """Queries of one screen on a recording, one at a time.

    Queries block, so call them in a thread; ``stop`` and ``close`` may be called from another. A session of
    the fleet is found by its name and start.
    """

    def __init__(self, source: QuerySource, clock: Callable[[], float] = time.monotonic) -> None:
        self.file = source.path.name
        self._source = source
        self._clock = clock

    def query(self, sql: str) -> ResultPage:
        """Run one read-only statement. Raises UserError."""
        begun = self._clock()
        result = self._source.query(sql)
        rows: list[tuple[Any, ...]] = []
        count = 0
        with contextlib.closing(result):
            for batch in result.batches:
                rows += batch[: MAX_ROWS - len(rows)]
                count += len(batch)
                if count > MAX_COUNTED:
                    break
        total = None if count > MAX_COUNTED else count
        return ResultPage(tuple(result.names), tuple(result.types), rows, total, self._clock() - begun)

    def details(self, session: Session) -> SessionDetails:
        """Return the details of a session, as far as it is on disk. Raises UserError."""
        period = self._find(session)
        return SessionDetails(
            summarize(self._source, period), processes(self._source, period), list(self._events(period))
        )

    def load(self, of: Callable[Concatenate[QuerySource, P], T], *values: P.args, **named: P.kwargs) -> T:
        """Return what a function loads from the recording. Raises UserError."""
        return of(self._source, *values, **named)

    def compared_runs(self, sessions: Sequence[Session]) -> list[comparison.ComparedRun]:
        """Return sessions to compare, with distinct labels. Raises UserError."""
        found = [self._find(session) for session in sessions]
        names = Counter(period.name for period in found)
        labels = [one.name + f" #{one.session_id}" * (names[one.name] > 1) for one in found]
        return [
            comparison.load_run(self._source, one, label) for one, label in zip(found, labels, strict=True)
        ]

    def _find(self, session: Session) -> Period:
        candidates = [
            one
            for one in periods.load_sessions(self._source)
            if abs(_unix(one.started_at) - session.started_at) <= _SAME_START_S
        ]
        named = [one for one in candidates if one.name == session.name]
        if not candidates:
            raise UserError(f"{session.name} isn't on disk yet; try again in a moment")
        return (named or candidates)[-1]

    def _events(self, period: Period) -> Iterator[EventLogged]:
        span = period.recording_id, period.started_at, period.until
        for ts, *values in self._source.query(_EVENTS, *span).rows():
            yield EventLogged(_unix(ts), *values)

    def stop(self) -> None:
        """Interrupt the running query, which raises UserError."""
        self._source.interrupt()

    def close(self) -> None:
        """Close the source and interrupt the running query."""
        self._source.close()


def _unix(moment: datetime) -> float:
    return moment.replace(tzinfo=UTC).timestamp()
