"""The filter language that selects GPUs, as in ``util<5 & power>300 | state:lost``.

    gpu03, gpu*          nodes whose name contains this or matches the pattern; gpu03:5 is one GPU of it
    util<5  mem>=40      a metric of the catalogue by its short or full name, in the unit that screens show;
                         < <= > >= = !=
    node:gpu0*           node by pattern; likewise state: user: command: model: and gpu: rank: by number, 0-3
    state:throttled      GPUs whose clocks are held down; the other states are those of nodes
    mine                 GPUs that the job was granted
    a b  a&b  a|b  !a    and, and, or, not; parentheses group

A comparison with an unmeasured value is false. A filter matches one node at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
import numpy.typing as npt

from gswarm_agent.metrics import GPU_COLUMNS, GPU_METRICS, HOST_COLUMNS, HOST_METRICS
from gswarm_tui.common.errors import nearest
from gswarm_tui.common.units import Unit, shown_unit
from gswarm_tui.fleet.history import Floats
from gswarm_tui.fleet.node import NodeState, Standing
from gswarm_tui.fleet.throttling import HARMFUL

Matches = npt.NDArray[np.bool_]
Test = Callable[[NodeState, float], Matches]


class FilterError(ValueError):
    """Raised for an invalid filter: a sentence, and the position in the text (from 0) of the mistake."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


@dataclass(frozen=True, eq=False)
class Filter:
    """A filter parsed from ``text``; ``names`` are its words that stand for a part of a node's name.

    ``match`` returns whether each GPU of a node matches; a node without GPUs has one value for itself.
    """

    text: str
    match: Test
    names: tuple[str, ...] = ()

    def unknown_name(self, nodes: Iterable[str]) -> str:
        """Return a clause on a word that no node's name contains, with a suggestion; else nothing."""
        known = list(nodes)
        for word in self.names:
            if any(_text_matches(name, word) for name in known):
                continue
            if word in _NUMBERS:
                return f"no node's name contains {word!r}; for the metric, write {word}>5"
            return f"no node's name contains {word!r}{nearest(word, _NUMBERS)}"
        return ""


def next_match(
    nodes: Sequence[NodeState],
    matches: Mapping[str, Matches],
    at: tuple[str, int | None] | None,
    *,
    stay: bool = False,
) -> tuple[str, int | None] | None:
    """Return the first match after a node's GPU, the first of all after the last; None if nothing matches.

    With ``stay``, the GPU itself comes first. The GPU of a node without GPUs is None.
    """
    places = [
        (row, gpu) for row, node in enumerate(nodes) for gpu in np.flatnonzero(matches[node.name]).tolist()
    ]
    if not places:
        return None
    rows = {node.name: row for row, node in enumerate(nodes)}
    start = (-1, 0) if at is None or at[0] not in rows else (rows[at[0]], at[1] or 0)
    later = (place for place in places if place > start or (stay and place == start))
    row, gpu = next(later, places[0])
    return nodes[row].name, gpu if nodes[row].facts else None


_OPERATORS: dict[str, Callable[[Floats, float], Matches]] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "=": np.equal,
    "==": np.equal,
    "!=": lambda values, number: np.isfinite(values) & (values != number),
}
_TOKEN = re.compile(r"(?P<mark>[()&|]|<=|>=|==|!=|[<>=!])|(?P<word>[^\s()&|<>=!]+)")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_THROTTLED = "throttled"
_STATES = (*(standing.value for standing in Standing), _THROTTLED)
_MAX_LENGTH = 500
_MAX_DEPTH = 30


@dataclass(frozen=True)
class _Token:
    text: str
    position: int
    word: bool


def parse(text: str) -> Filter:
    """Parse a filter; an empty one matches everything. Raises FilterError."""
    if len(text) > _MAX_LENGTH:
        raise FilterError(f"a filter has at most {_MAX_LENGTH} characters", _MAX_LENGTH)
    # Every character but white space is part of a token.
    tokens = [_Token(found[0], found.start(), found["word"] is not None) for found in _TOKEN.finditer(text)]
    if not tokens:
        return Filter(text, lambda node, _: np.ones(_rows(node), dtype=bool))
    parser = _FilterParser(tokens, len(text.rstrip()))
    test = parser.either()
    if (left := parser.peek()) is not None:
        raise FilterError(f"{left.text!r} has no opening parenthesis", left.position)
    return Filter(text, test, tuple(parser.names))


class _FilterParser:
    """Recursive-descent parser: or, and, not, term."""

    def __init__(self, tokens: list[_Token], end: int) -> None:
        self._tokens = tokens
        self._at = 0
        self._end = end
        self._depth = 0
        self.names: list[str] = []

    def peek(self) -> _Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _take(self, *marks: str) -> _Token | None:
        token = self.peek()
        if token is None or token.word or token.text not in marks:
            return None
        self._at += 1
        return token

    def either(self) -> Test:
        test = self._both()
        while self._take("|"):
            test = _or(test, self._both())
        return test

    def _both(self) -> Test:
        test = self._negated()
        while True:
            token = self.peek()
            if token is None or (not token.word and token.text in ("|", ")")):
                return test
            self._take("&")
            test = _and(test, self._negated())

    def _negated(self) -> Test:
        negations = 0
        while self._take("!"):
            negations += 1
        test = self._term()
        return (lambda node, now: ~test(node, now)) if negations % 2 else test

    def _term(self) -> Test:
        if (opened := self._take("(")) is not None:
            self._depth += 1
            if self._depth > _MAX_DEPTH:
                raise FilterError("parentheses are nested too deeply", opened.position)
            test = self.either()
            self._depth -= 1
            if self._take(")") is None:
                raise FilterError("this parenthesis isn't closed", opened.position)
            return test
        token = self.peek()
        if token is None:
            raise FilterError("the filter ends too early", self._end)
        if not token.word:
            raise FilterError(f"expected a node name or metric before {token.text!r}", token.position)
        self._at += 1
        operator = self._take(*_OPERATORS)
        if operator is not None:
            return self._comparison(token, operator)
        if token.text != "mine" and ":" not in token.text:
            self.names.append(token.text)
        return _plain(token)

    def _comparison(self, name: _Token, operator: _Token) -> Test:
        of_text = name.text.lower() in _TEXTS
        if name.text not in _NUMBERS and not of_text:
            raise FilterError(f"unknown metric {name.text!r}{nearest(name.text, _NUMBERS)}", name.position)
        number = self.peek()
        if number is None or not number.word:
            raise FilterError(
                f"expected a number after {operator.text!r}", operator.position + len(operator.text)
            )
        self._at += 1
        if of_text:
            meant = f"write {name.text}:{number.text}"
            raise FilterError(f"{name.text!r} isn't a number; {meant}", number.position)
        values, unit = _NUMBERS[name.text]
        digits = number.text.removesuffix(unit.name)
        if not _NUMBER.fullmatch(digits):
            of = f" of {unit.name}" if unit.name else ""
            raise FilterError(f"{number.text!r} isn't a number{of}", number.position)
        apart = self.peek()
        if unit.name and apart is not None and apart.text == unit.name:  # as screens print it, after a space
            self._at += 1
        compare, value = _OPERATORS[operator.text], float(digits) / unit.factor
        return lambda node, _: compare(values(node), value)


def _rows(node: NodeState) -> int:
    return max(1, len(node.facts))


def _all(node: NodeState, truth: bool) -> Matches:
    return np.full(_rows(node), truth)


def _or(one: Test, other: Test) -> Test:
    return lambda node, now: one(node, now) | other(node, now)


def _and(one: Test, other: Test) -> Test:
    return lambda node, now: one(node, now) & other(node, now)


def _of_each_gpu(values: Callable[[NodeState], Floats]) -> Callable[[NodeState], Floats]:
    """Return the values of each GPU, NaN for a node without GPUs."""
    return lambda node: values(node) if node.facts else np.full(1, np.nan)


def _ranks(node: NodeState) -> Floats:
    ranks = np.full(len(node.facts), np.nan)
    for process in node.processes:
        if process.rank is not None:
            ranks[process.gpu] = process.rank
    return ranks


def _throttled(node: NodeState, _now: float) -> Matches:
    return np.array([bool(bits & HARMFUL) for bits in node.clock_reasons] or [False])


_COUNTED = {
    "gpu": _of_each_gpu(lambda node: np.array([fact.index for fact in node.facts], dtype=np.float64)),
    "rank": _of_each_gpu(_ranks),
}
_NUMBERS: dict[str, tuple[Callable[[NodeState], Floats], Unit]] = {
    name: (of_column(columns.index(metric.name)), shown_unit(metric))
    for metrics, columns, of_column in (
        (HOST_METRICS, HOST_COLUMNS, lambda column: lambda node: np.full(_rows(node), node.host[column])),
        (GPU_METRICS, GPU_COLUMNS, lambda column: _of_each_gpu(lambda node: node.gpus[:, column])),
    )
    for metric in metrics
    for name in (metric.short, metric.name)
} | {name: (numbers, Unit("")) for name, numbers in _COUNTED.items()}
"""Values of each GPU of a node by name, and the unit in which a filter's number is."""


def _text_matches(text: str | None, pattern: str) -> bool:
    """Return whether a text contains the pattern, or matches it if it has wildcards; case is ignored."""
    if text is None:
        return False
    text, pattern = text.casefold(), pattern.casefold()
    return fnmatchcase(text, pattern) if any(c in pattern for c in "*?[") else pattern in text


def _plain(token: _Token) -> Test:
    """Return the test for one word: a field with a colon, "mine", or part of a node's name."""
    field, colon, wanted = token.text.partition(":")
    if not colon:
        if token.text == "mine":
            return lambda node, _: np.array(node.mine, dtype=bool) if node.facts else _all(node, True)
        return lambda node, _: _all(node, _text_matches(node.name, token.text))
    if field == "state" and wanted not in _STATES:
        raise FilterError(f"states: {', '.join(_STATES)}", token.position + len("state:"))
    if not wanted:
        raise FilterError(f"{field!r} needs a value after the colon", token.position + len(token.text))
    position = token.position + len(field) + 1
    if field in _COUNTED:
        return _in_range(_COUNTED[field], wanted, position)
    if field == "state":
        if wanted == _THROTTLED:
            return _throttled
        return lambda node, now: _all(node, node.standing(now).value == wanted)
    if field in _TEXTS:
        texts = _TEXTS[field]
        return lambda node, _: np.array(
            [any(_text_matches(text, wanted) for text in of_gpu) for of_gpu in texts(node)], dtype=bool
        )
    if wanted.isdecimal() and len(wanted) < 10:
        index_matches = _in_range(_COUNTED["gpu"], wanted, position)
        return _and(lambda node, _: _all(node, _text_matches(node.name, field)), index_matches)
    raise FilterError(
        f"unknown field {field!r}{nearest(field, [*_TEXTS, *_COUNTED, 'state'])}", token.position
    )


def _in_range(numbers: Callable[[NodeState], Floats], wanted: str, position: int) -> Test:
    match = _RANGE.fullmatch(wanted)
    if match is None:
        raise FilterError(f"{wanted!r} is neither a number nor a range such as 0-3", position)
    low, high = float(match[1]), float(match[2] or match[1])
    return lambda node, _: (numbers(node) >= low) & (numbers(node) <= high)


def _of_processes(attribute: str) -> Callable[[NodeState], list[list[str | None]]]:
    def texts(node: NodeState) -> list[list[str | None]]:
        by_gpu: list[list[str | None]] = [[] for _ in range(_rows(node))]
        for process in node.processes:
            if process.gpu < len(by_gpu):
                by_gpu[process.gpu].append(getattr(process, attribute))
        return by_gpu

    return texts


_TEXTS: dict[str, Callable[[NodeState], list[list[str | None]]]] = {
    "node": lambda node: [[node.name]] * _rows(node),
    "model": lambda node: [[fact.name] for fact in node.facts] or [[]],
    "user": _of_processes("user"),
    "command": _of_processes("command"),
}
"""Texts to search: a list for each GPU of a node."""
