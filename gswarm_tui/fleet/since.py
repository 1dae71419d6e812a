"""When a session began, as people say it: "now", "2m", "90 s ago", "14:05", "2026-01-31 14:05:10"."""

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


class SinceError(ValueError):
    """A time that can't be read, or that lies in the future; its text is one sentence for the person."""


def parse_since(text: str, now: float, timezone: tzinfo | None = None) -> float:
    """The Unix time that a text means, never after ``now``.

    A length of time counts back from now; a clock time is the latest one that has passed, in ``timezone``
    (None is the machine's own).
    """
    words = " ".join(text.lower().split())
    words = words.removeprefix("since ").removesuffix(" ago")
    if words in ("", "now"):
        return now
    if _LENGTH.fullmatch(words):
        return _believable(now - seconds_of(words), text)
    if clock := _CLOCK.fullmatch(words):
        return _clock(clock, text, now, timezone)
    try:
        moment = datetime.fromisoformat(words.upper())
    except ValueError:
        raise SinceError(
            f"can't read {text.strip()!r} as a time; write now, 30s, 2m, 1h30m, 14:05 or 2026-01-31 14:05"
        ) from None
    try:
        at = (moment if moment.tzinfo else _local(moment, timezone)).timestamp()
    except (ValueError, OverflowError):  # the year 1, which isn't one everywhere
        at = -math.inf
    if at > now:
        raise SinceError(f"{text.strip()} lies in the future")
    return _believable(at, text)


def _believable(at: float, text: str) -> float:
    if at < 0:
        raise SinceError(f"{text.strip()[:40]} lies too far in the past")
    return at


def split_since(line: str) -> tuple[str, str]:
    """A session's name and when it began, from one line: "train, since 2m ago" is ("train", "2m ago").

    Names may hold any text: only a last part that begins with ", since " is split off.
    """
    name, found, since = line.rpartition(", since ")
    return (name.strip(), since.strip()) if found and name.strip() else (line.strip(), "")


def seconds_of(words: str) -> float:
    """A length of time in seconds: "30s", "1h 30 min". Raises SinceError."""
    if not _LENGTH.fullmatch(words):
        raise SinceError(f"{words!r} is no length of time; write 30s, 2m or 1h30m")
    seconds = 0.0
    for number, unit in _PART.findall(words):
        if unit not in _SECONDS:
            raise SinceError(f"{unit!r} in {words!r} is no unit of time; write s, m, h or d")
        seconds += float(number) * _SECONDS[unit]
    return seconds


def _clock(found: re.Match[str], text: str, now: float, timezone: tzinfo | None) -> float:
    hour, minute, second = (int(part or 0) for part in found.groups())
    today = datetime.fromtimestamp(now, timezone) if timezone else datetime.fromtimestamp(now).astimezone()
    try:
        moment = today.replace(hour=hour, minute=minute, second=second, microsecond=0)
    except ValueError:
        raise SinceError(f"{text.strip()} is no time of day") from None
    return (moment if moment.timestamp() <= now else moment - timedelta(days=1)).timestamp()


def _local(moment: datetime, timezone: tzinfo | None) -> datetime:
    return moment.replace(tzinfo=timezone) if timezone else moment.astimezone()
