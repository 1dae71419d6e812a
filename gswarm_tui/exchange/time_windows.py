"""Windows of time with a bounded number of samples, so that exports of any length need little memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

from gswarm_tui.analysis.periods import Period
from gswarm_tui.store.figures.definitions import LONGEST_INTERVAL_S, reaches_into
from gswarm_tui.store.querying.results import QuerySource

SAMPLES_AT_ONCE = 50_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def utc_micros(at: datetime) -> int:
    """Convert a naive UTC time to Unix microseconds."""
    return (at.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


def iso(at: datetime) -> str:
    """Return a naive UTC time as text with its zone."""
    return at.replace(tzinfo=UTC).isoformat()


def sample_span(period: Period) -> tuple[int, int]:
    """Return the time range of a period's samples in Unix µs; the end isn't part of it.

    A session lacks the sample at its start, whose interval lies before it, and has those after its end whose
    interval begins in it; ``sample_in`` is the condition for these.
    """
    if period.session_id is None:
        return utc_micros(period.started_at), utc_micros(period.until)
    return utc_micros(period.started_at) + 1, utc_micros(period.until) + LONGEST_INTERVAL_S * 1_000_000


def sample_in(period: Period, interval: str) -> str:
    """Return the SQL condition that a sample ``s`` of ``sample_span`` counts; ``interval`` is in ms."""
    if period.session_id is None:
        return "true"
    return reaches_into(str(utc_micros(period.until)), interval)


def windows(
    source: QuerySource,
    rows: str,
    span: tuple[int, int],
    *,
    interval: int,
    devices: int,
    report: Callable[[float], None],
) -> Iterator[tuple[int, int]]:
    """Yield windows of a span (Unix µs), each of about ``SAMPLES_AT_ONCE`` samples. Raises StoreError.

    ``rows`` selects the samples ``s`` in SQL, as FROM and WHERE, of ``devices`` sampled every ``interval``.
    ``report`` gets the share done. Windows meet midway between two multiples of the interval, away from the
    deadlines.
    """
    bounds = f"SELECT epoch_us(min(s.ts)), epoch_us(max(s.ts)) {rows} AND {within(*span)}"
    ((first, last),) = source.query(bounds).rows()
    if first is None:
        return
    step = max(1, SAMPLES_AT_ONCE // max(1, devices)) * interval
    shift = interval - interval // 2
    begin = (first - shift) // step * step + shift
    for since in range(begin, last + 1, step):
        yield max(span[0], since), min(span[1], since + step)
        report(min(1.0, (since + step - begin) / (last + 1 - begin)))


def within(since: int, until: int) -> str:
    """Return the SQL condition that a sample ``s`` is in a window (Unix µs)."""
    return f"s.ts >= make_timestamp({since}) AND s.ts < make_timestamp({until})"
