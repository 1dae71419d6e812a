"""Parsers of typed times: "2m", "90 s ago", "14:05", "2026-01-31 14:05:10", "+30s", "50%", "end"."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta, tzinfo

_LENGTH = re.compile(r"(?:\d+(?:\.\d+)?\s*[a-z]+\s*)+")
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_SECONDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86400),
}


class TimeInputError(ValueError):
    """Raised for an invalid time or one in the future; the message is one sentence."""


def parse_start(text: str, now: float, timezone: tzinfo | None = None) -> float:
    """Parse a start time; the result is a Unix time, never after ``now``.

    A duration counts back from now; a time of day is the latest past one, in ``timezone`` (None: local).
    """
    words = " ".join(text.lower().split())
    words = words.removeprefix("since ").removesuffix(" ago")
    if words in ("", "now"):
        return now
    if _LENGTH.fullmatch(words):
        return _after_epoch(now - parse_duration(words), text)
    if clock := _CLOCK.fullmatch(words):
        return _latest_time_of_day(clock, text, now, timezone)
    try:
        moment = datetime.fromisoformat(words.upper())
    except ValueError:
        raise TimeInputError(
            f"can't read {text.strip()!r} as a time; write now, 30s, 2m, 1h30m, 14:05 or 2026-01-31 14:05"
        ) from None
    try:
        at = (moment if moment.tzinfo else _local(moment, timezone)).timestamp()
    except (ValueError, OverflowError):  # the year 1, which isn't one everywhere
        at = -math.inf
    if at > now:
        raise TimeInputError(f"{text.strip()} lies in the future")
    return _after_epoch(at, text)


def _after_epoch(at: float, text: str) -> float:
    if at < 0:
        raise TimeInputError(f"{text.strip()[:40]} lies too far in the past")
    return at


def split_start(line: str) -> tuple[str, str]:
    """Split a session's name from its start: "train, since 2m ago" is ("train", "2m ago").

    Names may hold any text: only a last part that begins with ", since " is split off.
    """
    name, found, since = line.rpartition(", since ")
    return (name.strip(), since.strip()) if found and name.strip() else (line.strip(), "")


def parse_duration(words: str) -> float:
    """Parse a duration into seconds: "30s", "1h 30 min". Raises TimeInputError."""
    if not _LENGTH.fullmatch(words):
        raise TimeInputError(f"{words!r} isn't a duration; write 30s, 2m or 1h30m")
    seconds = 0.0
    for number, unit in _PART.findall(words):
        if unit not in _SECONDS:
            raise TimeInputError(f"{unit!r} in {words!r} isn't a unit of time; write s, m, h or d")
        seconds += float(number) * _SECONDS[unit]
    return seconds


def _latest_time_of_day(match: re.Match[str], text: str, now: float, timezone: tzinfo | None) -> float:
    hour, minute, second = (int(part or 0) for part in match.groups())
    today = datetime.fromtimestamp(now, timezone) if timezone else datetime.fromtimestamp(now).astimezone()
    try:
        moment = today.replace(hour=hour, minute=minute, second=second, microsecond=0)
    except ValueError:
        raise TimeInputError(f"{text.strip()} isn't a time of day") from None
    return (moment if moment.timestamp() <= now else moment - timedelta(days=1)).timestamp()


def _local(moment: datetime, timezone: tzinfo | None) -> datetime:
    return moment.replace(tzinfo=timezone) if timezone else moment.astimezone()


_HOURS_OF_DAY = 24
SEEK_HINT = "14:05:10, +2m, -30s, 12m30s or 00:12:31 from the start, 50%, end"

_CLOCK = re.compile(r"(\d{1,3}):([0-5]\d)(?::([0-5]\d))?")
_SHARE = re.compile(r"(\d{1,3}(?:\.\d+)?)\s*%")


class SeekTimeError(ValueError):
    """Raised for an invalid time or one outside the recording; the message is one sentence."""


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
    if share := _SHARE.fullmatch(words):
        return _within(start + (end - start) * float(share[1]) / 100, text, start, end, timezone)
    if words[:1] in ("+", "-"):
        length = _length(words[1:].strip(), text)
        # A step beyond an end goes to the end.
        return min(max(at + (length if words[0] == "+" else -length), start), end)
    if words.endswith(" ago"):
        return max(end - _length(words.removesuffix(" ago"), text), start)
    if clock := _CLOCK.fullmatch(words):
        times = _times_of_day(clock, start, end, timezone)
        if times:
            return min(times, key=lambda time: abs(time - at))
        if clock[3] is None:
            of_day = int(clock[1]) < _HOURS_OF_DAY
            raise _outside(text, start, end, timezone) if of_day else _unreadable(text)
    try:
        moment = datetime.fromisoformat(words.upper())
    except ValueError:
        return _within(start + _length(words, text), text, start, end, timezone)
    return _within(_zoned(moment, timezone).timestamp(), text, start, end, timezone)


def _within(at: float, text: str, start: float, end: float, timezone: tzinfo | None) -> float:
    if start - 1 <= at <= end + 1:
        return min(max(at, start), end)
    raise _outside(text, start, end, timezone)


def _outside(text: str, start: float, end: float, timezone: tzinfo | None) -> SeekTimeError:
    first, last = (datetime.fromtimestamp(time, timezone) for time in (start, end))
    layout = "%H:%M:%S" if first.date() == last.date() else "%d %b %H:%M:%S"
    return SeekTimeError(
        f"{text.strip()} isn't in the recording, which goes from {first:{layout}} to {last:{layout}}"
    )


def _length(words: str, text: str) -> float:
    """Parse a duration: "2m", "1h30m", "12:31" (minutes and seconds) or "00:12:31"."""
    if clock := _CLOCK.fullmatch(words):
        first, second, third = (int(part) if part else None for part in clock.groups())
        hours, minutes, seconds = (first, second, third) if third is not None else (0, first, second)
        return (hours or 0) * 3600 + (minutes or 0) * 60 + (seconds or 0)
    try:
        return parse_duration(words)
    except TimeInputError:
        raise _unreadable(text) from None


def _unreadable(text: str) -> SeekTimeError:
    return SeekTimeError(f"can't read {text.strip()!r} as a time; write {SEEK_HINT}")


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
