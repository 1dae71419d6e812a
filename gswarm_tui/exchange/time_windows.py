"""Stretches of time with a bounded number of samples, so that any length is exported in little memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

SAMPLES_AT_ONCE = 50_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(at: datetime) -> int:
    """A time in UTC without a zone as Unix microseconds."""
    return (at.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


def windows(
    since: int, until: int, interval: int, things: int, tell: Callable[[float], None]
) -> Iterator[tuple[int, int]]:
    """Stretches from ``since`` to ``until`` in Unix microseconds, each of about ``SAMPLES_AT_ONCE`` samples.

    ``things`` are sampled every ``interval``. They meet midway between two multiples of the interval, where
    no deadline is. ``tell`` hears which share is done.
    """
    step = max(1, SAMPLES_AT_ONCE // max(1, things)) * interval
    begin = since
    while begin < until:
        end = min(until, (begin // step + 1) * step + interval - interval // 2)
        yield begin, end
        tell((end - since) / (until - since))
        begin = end
