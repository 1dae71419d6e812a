"""What a person asks a recording from a screen: SQL, what a session came to, sessions side by side."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gswarm_tui.analysis import comparison, periods
from gswarm_tui.analysis.periods import Period
from gswarm_tui.analysis.summary import ProcessPeaks, Summary, processes, summarize
from gswarm_tui.common.errors import UserError
from gswarm_tui.fleet.events import EventLogged
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.querying.results import QuerySource

MOST_ROWS = 5_000
"""Rows of an answer that are kept; more can't be read on a screen."""
MOST_COUNTED = 100_000
"""As many rows are fetched to tell how many there are."""
MOST_EVENTS = 2_000

_SAME_S = 1e-3
"""Sessions are found by when they began, which the database has in microseconds."""

_EVENTS = """
SELECT e.ts, e.kind, e.severity, n.node, g.gpu_index AS gpu, coalesce(e.message, '') AS message, e.detail
FROM events e LEFT JOIN nodes n USING (node_id) LEFT JOIN gpus g USING (gpu_id)
WHERE e.recording_id = ? AND e.ts >= ?::TIMESTAMP AND e.ts < ?::TIMESTAMP
ORDER BY e.ts LIMIT ?
"""


class RecordingQueryError(Exception):
    """Why there is no answer, in one sentence."""


@dataclass(frozen=True)
class ResultPage:
    """An answer's first rows, and how many there are: None for more than were counted.

    Values are what DuckDB's Python client gives; ``seconds`` is how long it took.
    """

    names: tuple[str, ...]
    types: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    total: int | None
    seconds: float


@dataclass(frozen=True)
class SessionKey:
    """A session by its name and when it began (Unix seconds), which tell it from all others."""

    name: str
    started_at: float


@dataclass(frozen=True)
class SessionDetails:
    """All that is known of a session; ``events`` has the first ones, marks among them."""

    summary: Summary
    processes: list[ProcessPeaks]
    events: list[EventLogged]


class RecordingQueries:
    """Asks a source, which it is given for itself, one thing at a time.

    All that answers takes a while and belongs into a thread; ``stop`` and ``close`` may come from another.
    """

    def __init__(self, source: QuerySource, clock: Callable[[], float] = time.monotonic) -> None:
        self.file = source.path.name
        self._source = source
        self._clock = clock

    def query(self, sql: str) -> ResultPage:
        """The answer to one statement that reads. Raises DeskError."""
        begun = self._clock()
        with _told():
            answer = self._source.query(sql)
            rows: list[tuple[Any, ...]] = []
            count = 0
            try:
                for batch in answer.batches:
                    rows += batch[: MOST_ROWS - len(rows)]
                    count += len(batch)
                    if count > MOST_COUNTED:
                        break
            finally:
                answer.close()
        total = None if count > MOST_COUNTED else count
        return ResultPage(tuple(answer.names), tuple(answer.types), rows, total, self._clock() - begun)

    def details(self, session: SessionKey) -> SessionDetails:
        """What a session came to, as far as it is on disk. Raises DeskError."""
        with _told():
            span = self._span(session)
            return SessionDetails(
                summarize(self._source, span), processes(self._source, span), list(self._events(span))
            )

    def runs(self, sessions: Sequence[SessionKey]) -> list[comparison.ComparedRun]:
        """Sessions to compare, by names that differ. Raises DeskError."""
        with _told():
            found = [self._span(session) for session in sessions]
            names = Counter(span.name for span in found)
            return [
                self._run(span, span.name if names[span.name] == 1 else f"{span.name} #{span.session_id}")
                for span in found
            ]

    def _run(self, span: Period, label: str) -> comparison.ComparedRun:
        summary = summarize(self._source, span)
        if summary.whole is None:
            raise RecordingQueryError(f"{span.name} holds no sample of a GPU, so there is nothing to compare")
        marks = comparison.final_mark_values(self._source, span)
        return comparison.ComparedRun(label, str(self._source.path), summary, summary.whole, marks)

    def _span(self, session: SessionKey) -> Period:
        begun = [one for one in periods.load_sessions(self._source) if _apart(one, session) <= _SAME_S]
        named = [one for one in begun if one.name == session.name]
        if not begun:
            raise RecordingQueryError(f"{session.name} isn't on disk yet; it will be in a moment")
        return (named or begun)[-1]

    def _events(self, span: Period) -> Iterator[EventLogged]:
        found = self._source.query(_EVENTS, span.recording_id, span.started_at, span.until, MOST_EVENTS)
        for row in found.dicts():
            yield EventLogged(
                _unix(row["ts"]),
                row["kind"],
                row["severity"],
                row["message"],
                row["node"],
                row["gpu"],
                row["detail"],
            )

    def stop(self) -> None:
        """End what is being asked: there DeskError is raised."""
        self._source.interrupt()

    def close(self) -> None:
        """Let go of the source; what is being asked ends."""
        self._source.close()


def _apart(span: Period, session: SessionKey) -> float:
    return abs(_unix(span.started_at) - session.started_at)


def _unix(moment: datetime) -> float:
    return moment.replace(tzinfo=UTC).timestamp()


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """What goes wrong becomes one sentence."""
    try:
        yield
    except (StoreError, UserError) as error:
        raise RecordingQueryError(str(error)) from error
