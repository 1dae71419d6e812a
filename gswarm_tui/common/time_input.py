"""Parsers of typed times: "2m", "90 s ago", "14:05", "2026-01-31 14:05:10", "+30s", "50%", "end"."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta, tzinfo

SEEK_HINT = "14:05:10, +2m, -30s, 12m30s or 00:12:31 from the start, 50%, end"

_START_HINT = "now, 30s, 2m, 1h30m, 14:05 or 2026-01-31 14:05"
_HOURS_OF_DAY, _SECONDS_OF_DAY = 24, 86400
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?\s*[a-z]+\s*)+")
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
_CLOCK = re.compile(r"(\d{1,3}):([0-5]\d)(?::([0-5]\d))?")
_SHARE = re.compile(r"(\d{1,3}(?:\.\d+)?)\s*%")
_SECONDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), _SECONDS_OF_DAY),
}


class TimeInputError(ValueError):
    """Raised for an invalid time or one out of range; the message is one sentence."""


def parse_start(text: str, now: float, timezone: tzinfo | None = None) -> float:
    """Parse a start time; the result is a Unix time, never after ``now``.

    A duration counts back from now; a time of day is the latest past one, in ``timezone`` (None: local).
    """
    words = " ".join(text.lower().split()).removeprefix("since ").removesuffix(" ago")
    if words in ("", "now"):
        return now
    if _DURATION.fullmatch(words):
        at = now - _duration(words, text, _START_HINT)
    elif clock := _CLOCK.fullmatch(words):
        if not (times := _times_of_day(clock, now - _SECONDS_OF_DAY, now, timezone)):
            raise _unreadable(text, _START_HINT)
        at = max(times)
    else:
        at = _date_time(words, text, _START_HINT, timezone)
    if at > now:
        raise TimeInputError(f"{text.strip()} lies in the future")
    if at < 0:
        raise TimeInputError(f"{text.strip()[:40]} lies too far in the past")
    return at


def split_start(line: str) -> tuple[str, str]:
    """Split a session's name from its start: "train, since 2m ago" is ("train", "2m ago").

    Names may hold any text: only a last part that begins with ", since " is split off.
    """
    name, found, since = line.rpartition(", since ")
    return (name.strip(), since.strip()) if found and name.strip() else (line.strip(), "")


def parse_seek_time(
    text: str, *, at: float, start: float, end: float, timezone: tzinfo | None = None
) -> float:
    """Parse a position in a recording from ``start`` to ``end`` (Unix times), seen from ``at``.

    A sign makes it relative to ``at``; a duration counts from the start. "14:05" is a time of day in
    ``timezone`` (None: local), nearest to ``at``; "00:12:31" is one if the recording contains it, else
    a duration.
    """
    words = " ".join(text.lower().split())
    if words in ("start", "end"):
        return start if words == "start" else end
    if words[:1] in ("+", "-"):
        length = _duration(words[1:].strip(), text, SEEK_HINT)
        # A step beyond an end goes to the end.
        return min(max(at + (length if words[0] == "+" else -length), start), end)
    if words.endswith(" ago"):
        return max(end - _duration(words.removesuffix(" ago"), text, SEEK_HINT), start)
    clock = _CLOCK.fullmatch(words)
    if clock and (times := _times_of_day(clock, start, end, timezone)):
        return min(times, key=lambda time: abs(time - at))
    if share := _SHARE.fullmatch(words):
        found = start + (end - start) * float(share[1]) / 100
    elif _DURATION.fullmatch(words) or (clock and clock[3]):
        found = start + _duration(words, text, SEEK_HINT)
    elif clock and int(clock[1]) < _HOURS_OF_DAY:
        found = math.inf  # a time of day that the recording doesn't contain
    else:
        found = _date_time(words, text, SEEK_HINT, timezone)
    if start - 1 <= found <= end + 1:
        return min(max(found, start), end)
    first, last = (datetime.fromtimestamp(time, timezone) for time in (start, end))
    layout = "%H:%M:%S" if first.date() == last.date() else "%d %b %H:%M:%S"
    raise TimeInputError(
        f"{text.strip()} isn't in the recording, which goes from {first:{layout}} to {last:{layout}}"
    )


def _duration(words: str, text: str, hint: str) -> float:
    """Parse a duration into seconds: "2m", "1h30m", "12:31" (minutes and seconds) or "00:12:31"."""
    if clock := _CLOCK.fullmatch(words):
        first, second, third = (int(part or 0) for part in clock.groups())
        return first * 3600 + second * 60 + third if clock[3] else first * 60 + second
    parts = _PART.findall(words) if _DURATION.fullmatch(words) else []
    if not parts or any(unit not in _SECONDS for _, unit in parts):
        raise _unreadable(text, hint)
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _date_time(words: str, text: str, hint: str, timezone: tzinfo | None) -> float:
    try:
        return _zoned(datetime.fromisoformat(words.upper()), timezone).timestamp()
    except (ValueError, OverflowError):  # the year 1 isn't one everywhere
        raise _unreadable(text, hint) from None


def _unreadable(text: str, hint: str) -> TimeInputError:
    return TimeInputError(f"can't read {text.strip()!r} as a time; write {hint}")


def _times_of_day(clock: re.Match[str], start: float, end: float, timezone: tzinfo | None) -> list[float]:
    """Return the Unix times from ``start`` to ``end`` at which clocks show this; a second more fits."""
    hour, minute, second = (int(part or 0) for part in clock.groups())
    if hour >= _HOURS_OF_DAY:
        return []
    day = _zoned(datetime.fromtimestamp(start, timezone).replace(tzinfo=None), timezone)
    found = []
    for days in range(int((end - start) // _SECONDS_OF_DAY) + 2):
        moment = (day + timedelta(days=days)).replace(hour=hour, minute=minute, second=second, microsecond=0)
        if start - 1 <= moment.timestamp() <= end + 1:
            found.append(min(max(moment.timestamp(), start), end))
    return found


def _zoned(moment: datetime, timezone: tzinfo | None) -> datetime:
    if moment.tzinfo:
        return moment
    return moment.replace(tzinfo=timezone) if timezone else moment.astimezone()
