"""Ticks of the time axis at round local times, and times as text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

from matplotlib import dates

_MOST_TICKS = 12
# Matplotlib has no types for this module.
_DATES: Any = dates


def clock_ticks(started_at: datetime, seconds: float, zone: tzinfo | None) -> list[tuple[float, str]]:
    """Return round times of a zone (None: local) in a period that begins at a naive UTC time.

    Each has its place in seconds from the start, and its label. If the period spans several days, the first
    of each day also shows the date. The offset from UTC is that of the period's start.
    """
    local = started_at.replace(tzinfo=UTC).astimezone(zone)
    offset = timezone(local.utcoffset() or timedelta())
    begin = local.astimezone(offset)
    end = begin + timedelta(seconds=seconds)
    locator = _DATES.AutoDateLocator(offset, maxticks=_MOST_TICKS)
    times: list[datetime] = [_DATES.num2date(at, offset) for at in locator.tick_values(begin, end)]
    pattern = "%H:%M:%S" if any(time.second for time in times) else "%H:%M"
    day = begin.date() if begin.date() == end.date() else None
    ticks = []
    for time in times:
        # Labels have whole seconds, which parts of a second would repeat.
        if begin <= time <= end and not time.microsecond:
            date = "" if time.date() == day else f"\n{time:%b} {time.day}"
            day = time.date()
            ticks.append(((time - begin).total_seconds(), f"{time:{pattern}}{date}"))
    return ticks


def zone_name(at: datetime, zone: tzinfo | None) -> str:
    """Return the name of a zone at a naive UTC time: "CET (UTC+0100)", "UTC"."""
    local = at.replace(tzinfo=UTC).astimezone(zone)
    return "UTC" if local.tzname() == "UTC" else f"{local:%Z} (UTC{local:%z})"


def moment(at: datetime, zone: tzinfo | None, like: datetime | None = None) -> str:
    """Format a naive UTC time as local time, "2026-11-21 11:15:04"; without the date if ``like`` has it."""
    local = at.replace(tzinfo=UTC).astimezone(zone)
    same = like is not None and like.replace(tzinfo=UTC).astimezone(zone).date() == local.date()
    return f"{local:%H:%M:%S}" if same else f"{local:%Y-%m-%d %H:%M:%S}"
