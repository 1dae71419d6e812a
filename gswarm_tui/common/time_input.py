"""Parser of times in a recording as people type them: "-2m", "2m ago", "+2m", "14:05", "50%", "end"."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, tzinfo

from gswarm_agent.metrics import MAX_INTERVAL_MS, MIN_INTERVAL_MS
from gswarm_tui.common.errors import quote
from gswarm_tui.common.quantities import age

TIME_FORMS = "-2m, 2m ago, +2m from the start, 14:05, 50%, end"
"""The forms that every dialog and option accepts, for hints and errors."""

INTERVAL_HINT = f"1, 0.5s or 500ms; between {MIN_INTERVAL_MS / 1000:g} s and {MAX_INTERVAL_MS / 1000:g} s"

_HOURS_OF_DAY, _SECONDS_OF_DAY = 24, 86400
_BEFORE_END = re.compile(r"[-\N{MINUS SIGN}]\s*(.+)|(.+) ago")
_AFTER_START = re.compile(r"\+\s*(.+?)(?: from the start)?|(.+) from the start")
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{0,9})?|\.\d{1,9}")
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?\s*[a-z]+\s*)+")
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
_CLOCK = re.compile(r"(\d{1,3}):([0-5]\d)(?::([0-5]\d))?")
_SHARE = re.compile(r"(\d{1,3}(?:\.\d+)?)\s*%")
_SECONDS = {
    "ms": 0.001,
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), _SECONDS_OF_DAY),
}


class TimeInputError(ValueError):
    """Raised for an invalid time or one outside the recording; the message is one sentence."""


def parse_seconds(text: str, examples: str, least_s: float, most_s: float) -> float:
    """Parse seconds, or a duration such as "30m" or "1h30m". Raises TimeInputError out of the limits."""
    words = text.strip().lower()
    seconds = float(words) if _NUMBER.fullmatch(words) else _sum_of_parts(words)
    if seconds is None:
        raise TimeInputError(f"{quote(text)} isn't a time such as {examples}")
    if not least_s <= seconds <= most_s:
        raise TimeInputError(f"{quote(text)} isn't between {least_s:g} s and {age(most_s)}")
    return seconds


def parse_interval_ms(text: str) -> int:
    """Parse a sampling interval into milliseconds, from text such as "1", "0.5s" and "500ms"."""
    limits = MIN_INTERVAL_MS / 1000, MAX_INTERVAL_MS / 1000
    return round(1000 * parse_seconds(text, "1, 0.5s or 500ms", *limits))


def parse_time(text: str, *, start: float, end: float, timezone: tzinfo | None = None) -> float:
    """Parse a time of a recording from ``start`` to ``end``, which is now while it runs (Unix times).

    "-2m" and "2m ago" count back from the end, "+2m" from the start. "14:05" is the latest such time of day,
    in ``timezone`` (None: local).

    Raises:
        TimeInputError: the text is no time, or one outside the recording.
    """
    words = " ".join(text.lower().split())
    if words in ("start", "end", "now"):
        return start if words == "start" else end
    if back := _BEFORE_END.fullmatch(words):
        found = end - _duration(back[1] or back[2], text)
    elif forward := _AFTER_START.fullmatch(words):
        found = start + _duration(forward[1] or forward[2], text)
    elif share := _SHARE.fullmatch(words):
        found = start + (end - start) * float(share[1]) / 100
    elif clock := _CLOCK.fullmatch(words):
        if int(clock[1]) >= _HOURS_OF_DAY:
            raise _unreadable(text)
        hour, minute, second = (int(part or 0) for part in clock.groups())
        last = datetime.fromtimestamp(end + 1, timezone)
        day = last.replace(hour=hour, minute=minute, second=second, microsecond=0)
        found = (day if day <= last else day - timedelta(days=1)).timestamp()
    else:
        try:
            moment = datetime.fromisoformat(words.upper())
            found = (moment if moment.tzinfo else moment.replace(tzinfo=timezone)).timestamp()
        except (ValueError, OverflowError):  # the year 1 isn't one everywhere
            raise _unreadable(text) from None
    if start - 1 <= found <= end + 1:  # what is typed has whole seconds
        return min(max(found, start), end)
    first, latest = (datetime.fromtimestamp(time, timezone) for time in (start, end))
    layout = "%H:%M:%S" if first.date() == latest.date() else "%d %b %H:%M:%S"
    raise TimeInputError(
        f"{quote(text.strip())} isn't in the recording, which goes from {first:{layout}} to {latest:{layout}}"
    )


def _duration(words: str, text: str) -> float:
    """Parse a duration into seconds: "2m", "1h30m", "12:31" (minutes and seconds) or "00:12:31"."""
    if clock := _CLOCK.fullmatch(words):
        first, second, third = (int(part or 0) for part in clock.groups())
        return first * 3600 + second * 60 + third if clock[3] else first * 60 + second
    if (seconds := _sum_of_parts(words)) is None:
        raise _unreadable(text)
    return seconds


def _sum_of_parts(words: str) -> float | None:
    """Return the seconds of a duration such as "1h30m"; None for another text."""
    parts = _PART.findall(words) if _DURATION.fullmatch(words) else []
    if not parts or any(unit not in _SECONDS for _, unit in parts):
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _unreadable(text: str) -> TimeInputError:
    return TimeInputError(f"can't read {quote(text.strip())} as a time; write {TIME_FORMS}")
