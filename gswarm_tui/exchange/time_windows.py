"""Windows of time with a bounded number of samples, so that exports of any length need little memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta

from gswarm_tui.analysis.periods import Period
from gswarm_tui.store.figures.definitions import LONGEST_INTERVAL_S, reaches_into

SAMPLES_AT_ONCE = 50_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ALL = 0, 2**60


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


def profile_span(period: Period) -> tuple[int, int]:
    """Return from when to before when profiles count, in Unix µs: all of a whole recording."""
    return _ALL if period.session_id is None else (utc_micros(period.started_at), utc_micros(period.until))


def windows(
    span: tuple[int, int],
    interval: int,
    devices: int,
    find_numbers: Callable[[str], Iterable[int]],
    report: Callable[[float], None],
) -> Iterator[tuple[int, int]]:
    """Yield windows of a span (Unix µs), each of about ``SAMPLES_AT_ONCE`` samples.

    ``report`` gets the share done. ``find_numbers`` returns the distinct values that an SQL expression has in
    the samples ``s`` of the span, in order: windows without samples are left out, as a span may be far longer
    than its samples. ``devices`` are sampled every ``interval``. Windows meet midway between two multiples of
    the interval, away from the deadlines.
    """
    since, until = span
    step = max(1, SAMPLES_AT_ONCE // max(1, devices)) * interval
    shift = interval - interval // 2
    numbers = list(find_numbers(f"(epoch_us(s.ts) - {shift}) // {step}"))
    for done, number in enumerate(numbers, 1):
        yield max(since, number * step + shift), min(until, (number + 1) * step + shift)
        report(done / len(numbers))
