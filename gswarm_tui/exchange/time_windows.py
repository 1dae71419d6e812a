"""Windows of time with a bounded number of samples, so that exports of any length need little memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

SAMPLES_AT_ONCE = 50_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(at: datetime) -> int:
    """Convert a naive UTC time to Unix microseconds."""
    return (at.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


def windows(
    since: int, until: int, interval: int, devices: int, report: Callable[[float], None]
) -> Iterator[tuple[int, int]]:
    """Yield windows from ``since`` to ``until`` (Unix µs), each of about ``SAMPLES_AT_ONCE`` samples.

    ``devices`` are sampled every ``interval``. Windows meet midway between two multiples of the interval,
    away from the deadlines. ``report`` gets the share done.
    """
    step = max(1, SAMPLES_AT_ONCE // max(1, devices)) * interval
    begin = since
    while begin < until:
        end = min(until, (begin // step + 1) * step + interval - interval // 2)
        yield begin, end
        report((end - since) / (until - since))
        begin = end
