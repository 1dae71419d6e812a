"""Parser of what people type for a trace: a time or a number of iterations, and ranks."""

from __future__ import annotations

import re

from gswarm_tui.common.time_input import TimeInputError

MAX_RANKS = 4096
_ITERATIONS = re.compile(r"(\d{1,4})\s*(?:it|iterations?)")
_SECONDS = re.compile(r"(\d{1,2}(?:\.\d+)?|\.\d+)\s*s?")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
YES, NO = frozenset(("y", "yes", "on")), frozenset(("", "n", "no", "off"))


def parse_traced(text: str) -> tuple[int, int]:
    """Return milliseconds and iterations of "0.5" or "3 it". Raises TimeInputError."""
    plain = text.strip().lower()
    if found := _ITERATIONS.fullmatch(plain):
        return 500, int(found[1])
    if (found := _SECONDS.fullmatch(plain)) and (duration_ms := round(float(found[1]) * 1000)):
        return duration_ms, 0
    raise TimeInputError(
        f"{text!r} is neither seconds, such as 0.5, nor iterations, such as 3 it; at most 99 s"
    )


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
