"""Parser of what people type for a trace: a time, and ranks."""

from __future__ import annotations

import re

from gswarm_tui.common.time_input import TimeInputError

MAX_RANKS = 4096
_SECONDS = re.compile(r"(\d{1,2}(?:\.\d+)?|\.\d+)\s*s?")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
YES, NO = frozenset(("y", "yes", "on")), frozenset(("", "n", "no", "off"))


def parse_traced(text: str) -> int:
    """Return the milliseconds of a number of seconds, such as "0.5". Raises TimeInputError."""
    if (found := _SECONDS.fullmatch(text.strip().lower())) and (duration_ms := round(float(found[1]) * 1000)):
        return duration_ms
    raise TimeInputError(f"{text!r} isn't a number of seconds, such as 0.5; at most 99")


def parse_rank_list(text: str) -> tuple[int, ...]:
    """Return the ranks of a list such as "0-7,16"; none for an empty text. Raises TimeInputError."""
    ranks: set[int] = set()
    for part in filter(None, text.replace(" ", "").split(",")):
        found = _RANGE.fullmatch(part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if not first <= last < first + MAX_RANKS:
            raise TimeInputError(f"{part!r} isn't a rank or a range of ranks, such as 0-7,16")
        ranks.update(range(first, last + 1))
    return tuple(sorted(ranks))


def parse_yes(text: str) -> bool:
    """Return whether a text means yes. Raises TimeInputError."""
    plain = text.strip().lower()
    if plain not in YES | NO:
        raise TimeInputError("type yes or no")
    return plain in YES
