"""Ticks of the time axis at round local times, and times as text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800)
_HOURS = tuple(3600 * hours for hours in (1, 2, 3, 6, 12, 24, 48, 7 * 24, 14 * 24, 28 * 24))
_MOST_TICKS = 8


@dataclass(frozen=True)
class Tick:
    """A tick, in seconds from the period's start, and its label."""

    at: float
    label: str


def _step(seconds: float) -> int:
    longest = _HOURS[-1]
    return next(
        (step for step in _STEPS + _HOURS if seconds / step <= _MOST_TICKS),
        longest * math.ceil(seconds / _MOST_TICKS / longest),
    )


def clock_ticks(started_at: datetime, seconds: float, zone: tzinfo | None) -> list[Tick]:
    """Return round times of a zone (None: local) in a period that begins at a naive UTC time.

    If the period spans several days, the first tick of each day also shows the date.
    """
    begin = started_at.replace(tzinfo=UTC)
    step = _step(seconds)
    ticks: list[Tick] = []
    at = _floored(begin.astimezone(zone), step).astimezone(UTC)
    day = None
    days = begin.astimezone(zone).date() != (begin + timedelta(seconds=seconds)).astimezone(zone).date()
    while (offset := (at - begin).total_seconds()) <= seconds:
        local = at.astimezone(zone)
        if offset >= 0 and _is_round(local, step):
            label = f"{local:%H:%M:%S}" if step < 60 else f"{local:%H:%M}"
            if days and local.date() != day:
                label = f"{local:%b} {local.day}" if step >= 86_400 else f"{label}\n{local:%b} {local.day}"
                day = local.date()
            ticks.append(Tick(offset, label))
        # After a change of daylight saving time, steps of hours miss round times: search hour by hour.
        at += timedelta(seconds=step if _is_round(local, step) or step < 3600 else 3600)
    return ticks


def _floored(local: datetime, step: int) -> datetime:
    if step >= 86_400:
        return local.replace(hour=0, minute=0, second=0, microsecond=0)
    second = local.hour * 3600 + local.minute * 60 + local.second
    return local - timedelta(seconds=second % step, microseconds=local.microsecond)


def _is_round(local: datetime, step: int) -> bool:
    second = local.hour * 3600 + local.minute * 60 + local.second
    return second % min(step, 86_400) == 0


def zone_name(at: datetime, zone: tzinfo | None) -> str:
    """Return the name of a zone at a naive UTC time: "CET (UTC+1)", "UTC", "UTC+5:30"."""
    local = at.replace(tzinfo=UTC).astimezone(zone)
    minutes = round((local.utcoffset() or timedelta()).total_seconds() / 60)
    hours, rest = divmod(abs(minutes), 60)
    offset = f"UTC{'+' if minutes >= 0 else '−'}{hours}" + (f":{rest:02d}" if rest else "")
    name = local.tzname() or ""
    if not minutes:
        return "UTC" if name in ("UTC", "", "GMT") else f"{name} (UTC)"
    return f"{name} ({offset})" if name.isalpha() else offset


def moment(at: datetime, zone: tzinfo | None, like: datetime | None = None) -> str:
    """Format a naive UTC time as local time, "2026-11-21 11:15:04"; without the date if ``like`` has it."""
    local = at.replace(tzinfo=UTC).astimezone(zone)
    same = like is not None and like.replace(tzinfo=UTC).astimezone(zone).date() == local.date()
    return f"{local:%H:%M:%S}" if same else f"{local:%Y-%m-%d %H:%M:%S}"
