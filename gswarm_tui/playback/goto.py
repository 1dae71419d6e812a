"""A time in a recording, as people say it: "14:05:10", "+2m", "12m30s", "00:12:31", "50%", "end"."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, tzinfo

from gswarm_tui.fleet.since import SinceError, seconds_of

_HOURS_OF_DAY = 24
HINT = "14:05:10, +2m, -30s, 12m30s or 00:12:31 from the start, 50%, end"

_CLOCK = re.compile(r"(\d{1,3}):([0-5]\d)(?::([0-5]\d))?")
_SHARE = re.compile(r"(\d{1,3}(?:\.\d+)?)\s*%")


class GotoError(ValueError):
    """A time that can't be read, or isn't in the recording; its text is one sentence for the person."""


def parse_goto(text: str, *, at: float, start: float, end: float, timezone: tzinfo | None = None) -> float:
    """The Unix time that a text means in a recording from ``start`` to ``end``, seen from ``at``.

    A sign makes it relative to ``at``; a length of time counts from the start. "14:05" is a time of day in
    ``timezone`` (None is the machine's own), the one nearest to ``at``; "00:12:31" is one if the recording
    has it, else a length, too.
    """
    words = " ".join(text.lower().split())
    if words in ("start", "end"):
        return start if words == "start" else end
    if share := _SHARE.fullmatch(words):
        return _within(start + (end - start) * float(share[1]) / 100, text, start, end, timezone)
    if words[:1] in ("+", "-"):
        length = _length(words[1:].strip(), text)
        # One that asks for more than there is gets all there is: the way is clear.
        return min(max(at + (length if words[0] == "+" else -length), start), end)
    if words.endswith(" ago"):
        return max(end - _length(words.removesuffix(" ago"), text), start)
    if clock := _CLOCK.fullmatch(words):
        times = _times_of_day(clock, start, end, timezone)
        if times:
            return min(times, key=lambda time: abs(time - at))
        if clock[3] is None:
            of_day = int(clock[1]) < _HOURS_OF_DAY
            raise _elsewhere(text, start, end, timezone) if of_day else _unreadable(text)
    try:
        moment = datetime.fromisoformat(words.upper())
    except ValueError:
        return _within(start + _length(words, text), text, start, end, timezone)
    return _within(_zoned(moment, timezone).timestamp(), text, start, end, timezone)


def _within(at: float, text: str, start: float, end: float, timezone: tzinfo | None) -> float:
    if start - 1 <= at <= end + 1:
        return min(max(at, start), end)
    raise _elsewhere(text, start, end, timezone)


def _elsewhere(text: str, start: float, end: float, timezone: tzinfo | None) -> GotoError:
    first, last = (datetime.fromtimestamp(time, timezone) for time in (start, end))
    layout = "%H:%M:%S" if first.date() == last.date() else "%d %b %H:%M:%S"
    return GotoError(f"{text.strip()} isn't in here: it goes from {first:{layout}} to {last:{layout}}")


def _length(words: str, text: str) -> float:
    """Seconds of "2m", "1h30m", "12:31" (minutes and seconds) or "00:12:31"."""
    if clock := _CLOCK.fullmatch(words):
        first, second, third = (int(part) if part else None for part in clock.groups())
        hours, minutes, seconds = (first, second, third) if third is not None else (0, first, second)
        return (hours or 0) * 3600 + (minutes or 0) * 60 + (seconds or 0)
    try:
        return seconds_of(words)
    except SinceError:
        raise _unreadable(text) from None


def _unreadable(text: str) -> GotoError:
    return GotoError(f"can't read {text.strip()!r} as a time; write {HINT}")


def _times_of_day(clock: re.Match[str], start: float, end: float, timezone: tzinfo | None) -> list[float]:
    hour, minute, second = (int(part or 0) for part in clock.groups())
    if hour >= _HOURS_OF_DAY:
        return []
    day = _zoned(datetime.fromtimestamp(start, timezone).replace(tzinfo=None), timezone)
    found = []
    for days in range(int((end - start) // 86400) + 2):
        moment = (day + timedelta(days=days)).replace(hour=hour, minute=minute, second=second, microsecond=0)
        if start - 1 <= moment.timestamp() <= end + 1:
            found.append(min(max(moment.timestamp(), start), end))
    return found


def _zoned(moment: datetime, timezone: tzinfo | None) -> datetime:
    if moment.tzinfo:
        return moment
    return moment.replace(tzinfo=timezone) if timezone else moment.astimezone()
