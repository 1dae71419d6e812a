"""Choice of runs from a list: filter words, the time since which, and the order."""

from __future__ import annotations

import fnmatch
import re
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from gswarm_tui.common.errors import UserError, nearest, quote
from gswarm_tui.common.time_input import parse_seconds
from gswarm_tui.runs.line import RunLine

_TEXTS: dict[str, Callable[[RunLine], Iterable[str]]] = {
    "name": lambda line: (line.name, *line.sessions),
    "finding": lambda line: (finding.kind for finding in line.findings),
    "node": lambda line: line.nodes,
    "job": lambda line: (line.job,),
    "user": lambda line: (line.user,),
}
_FILTER = re.compile(f"({'|'.join(_TEXTS)}):(.+)")
_ORDERS: dict[str, Callable[[RunLine], float | str | None]] = {
    "started": lambda line: line.started_at,
    "name": lambda line: line.name,
    "job": lambda line: line.job,
    "gpus": lambda line: line.gpus,
    "time": lambda line: line.seconds,
    "energy": lambda line: line.energy_j,
    "util": lambda line: line.util_mean_pct,
    "coverage": lambda line: line.coverage,
    "lost": lambda line: sum(finding.gpu_hours for finding in line.findings),
    "size": lambda line: line.size,
}
SORTS = tuple(_ORDERS)
FILTERS = ", ".join(f"{name}:" for name in _TEXTS)
_EXAMPLES = "30d, 12h or 2026-03-01"
_CENTURY_S = 100 * 366 * 86_400


def is_filter(word: str) -> bool:
    """Return whether a word filters, as name:train* does."""
    return _FILTER.fullmatch(word) is not None


def choose(lines: Iterable[RunLine], words: Sequence[str], since: float | None) -> list[RunLine]:
    """Return the runs that match all filter words and began after a time, in the same order."""
    tests = [(_TEXTS[match[1]], match[2]) for word in words if (match := _FILTER.fullmatch(word))]
    return [
        line
        for line in lines
        if (since is None or line.started_at >= since)
        and all(any(fnmatch.fnmatchcase(text, pattern) for text in texts(line)) for texts, pattern in tests)
    ]


def sort(lines: Iterable[RunLine], column: str) -> list[RunLine]:
    """Sort runs: numbers from the largest, texts from A, what isn't measured last. Raises UserError."""
    if column not in _ORDERS:
        hint = nearest(column, SORTS) or f"; it is one of {', '.join(SORTS)}"
        raise UserError(f"--sort: {quote(column)} isn't a column{hint}.")
    value = _ORDERS[column]

    def key(line: RunLine) -> tuple[bool, float, str]:
        found = value(line)
        return (
            (True, 0, "")
            if found is None
            else (False, 0, found)
            if isinstance(found, str)
            else (False, -found, "")
        )

    return sorted(lines, key=key)


def parse_since(text: str, flag: str = "--since") -> float:
    """Return the Unix time of a date, or of so long ago. Raises UserError."""
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):
        pass
    try:
        return time.time() - parse_seconds(text, _EXAMPLES, 1, _CENTURY_S)
    except ValueError as error:
        raise UserError(f"{flag}: {error}.") from None
