"""Search in a list as one types: an entry must contain each typed word; the search is never fuzzy."""

from __future__ import annotations

import re

_WORD = re.compile(r"[^\W_]+")


def match_score(query: str, title: str, words: str = "") -> float:
    """Return how well an entry fits, 0 for not at all: a word of the title counts more than other ``words``.

    Each word of the query must begin a word of the entry, or be a part of the title.
    """
    scores = []
    for part in query.lower().split():
        in_title, in_words = _score(part, title), _score(part, words) / 2
        scores.append(max(in_title, in_words) or 0.2 * (len(part) > 1 and part in title.lower()))
    return sum(scores) / len(scores) if scores and all(scores) else 0.0


def _score(part: str, text: str) -> float:
    """Return 1 for a whole word, less for the beginning of one, and a little more for an early word."""
    found = [
        (1.0 if word == part else 0.8) - min(at, 10) / 100
        for at, word in enumerate(_WORD.findall(text.lower()))
        if word.startswith(part)
    ]
    return max(found, default=0.0)
