"""The filter language that selects GPUs, as in ``util<5 & power>300 | state:lost``.

    gpu03, gpu*          nodes whose name contains this or matches the pattern; gpu03:5 is one GPU of it,
                         with its MIG instances; gpu03:5.1 is one of these
    util<5  mem>=40      a metric of the catalogue by its short or full name, in the unit that screens show;
                         < <= > >= = !=
    node:gpu0*           node by pattern; likewise state: user: command: wchan: job: framework: nccl:
                         container: model: mig: and gpu: rank: by number, 0-3; mig:* are all MIG instances,
                         mig:1g* those of a 1g profile
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
    """Raised for an invalid filter; the message names the wrong part."""


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
_TOKEN = re.compile(r"[()&|]|<=|>=|==|!=|[<>=!]|[^\s()&|<>=!]+")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_INSTANCE = re.compile(r"\d{1,4}\.\d")
_THROTTLED = "throttled"
_STATES = (*(standing.value for standing in Standing), _THROTTLED)
_MAX_LENGTH = 500
_MAX_DEPTH = 30


def parse(text: str) -> Filter:
    """Parse a filter; an empty one matches everything. Raises FilterError."""
    if len(text) > _MAX_LENGTH:
        raise FilterError(f"a filter has at most {_MAX_LENGTH} characters")
    # Every character but white space is part of a token.
    tokens = _TOKEN.findall(text)
    if not tokens:
        return Filter(text, lambda node, _: np.ones(_rows(node), dtype=bool))
    parser = _FilterParser(tokens)
    test = parser.either()
    if left := parser.peek():
        raise FilterError(f"{left!r} has no opening parenthesis")
    return Filter(text, test, tuple(parser.names))


class _FilterParser:
    """Recursive-descent parser: or, and, not, term. Tokens are words and marks; the end is an empty one."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0
        self.names: list[str] = []

    def peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, *marks: str) -> str:
        token = self.peek()
        if token not in marks:
            return ""
        self._at += 1
        return token

    def _word(self, expected: str) -> str:
        token = self.peek()
        if not token:
            raise FilterError(f"the filter ends too early: expected {expected}")
        if token[0] in "()&|<>=!":
            raise FilterError(f"expected {expected} before {token!r}")
        self._at += 1
        return token

    def either(self) -> Test:
        test = self._both()
        while self._take("|"):
            test = _or(test, self._both())
        return test

    def _both(self) -> Test:
        test = self._negated()
        while self.peek() not in ("", "|", ")"):
            self._take("&")
            test = _and(test, self._negated())
        return test

    def _negated(self) -> Test:
        negations = 0
        while self._take("!"):
            negations += 1
        test = self._term()
        return (lambda node, now: ~test(node, now)) if negations % 2 else test

    def _term(self) -> Test:
        if self._take("("):
            self._depth += 1
            if self._depth > _MAX_DEPTH:
                raise FilterError("parentheses are nested too deeply")
            test = self.either()
            self._depth -= 1
            if not self._take(")"):
                raise FilterError("a parenthesis isn't closed")
            return test
        word = self._word("a node name or metric")
        if operator := self._take(*_OPERATORS):
            return self._comparison(word, operator)
        if word != "mine" and ":" not in word:
            self.names.append(word)
        return _plain(word)

    def _comparison(self, name: str, operator: str) -> Test:
        if name not in _NUMBERS and name not in _TEXTS:
            raise FilterError(f"unknown metric {name!r}{nearest(name, _NUMBERS)}")
        number = self._word("a number")
        if name in _TEXTS:
            raise FilterError(f"{name!r} isn't a number; write {name}:{number}")
        values, unit = _NUMBERS[name]
        digits = number.removesuffix(unit.name)
        if not _NUMBER.fullmatch(digits):
            raise FilterError(f"{number!r} isn't a number" + (f" of {unit.name}" if unit.name else ""))
        if unit.name:  # as screens print it, after a space
            self._take(unit.name)
        compare, value = _OPERATORS[operator], float(digits) / unit.factor
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


def _gpu_indexes(node: NodeState) -> Floats:
    """Return the index of each GPU, and of each MIG instance its GPU's."""
    indexes = [f.index if f.parent_index is None else f.parent_index for f in node.facts]
    return np.array(indexes, dtype=np.float64)


_COUNTED = {"gpu": _of_each_gpu(_gpu_indexes), "rank": _of_each_gpu(_ranks)}
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


def _plain(word: str) -> Test:
    """Return the test for one word: a field with a colon, "mine", or part of a node's name."""
    field, colon, wanted = word.partition(":")
    if not colon:
        if word == "mine":
            return lambda node, _: np.array(node.mine, dtype=bool) if node.facts else _all(node, True)
        return lambda node, _: _all(node, _text_matches(node.name, word))
    if field == "state" and wanted not in _STATES:
        raise FilterError(f"states: {', '.join(_STATES)}")
    if not wanted:
        raise FilterError(f"{field!r} needs a value after the colon")
    if field in _COUNTED:
        instance = _gpu(wanted) if field == "gpu" else None
        return instance or _in_range(_COUNTED[field], wanted)
    if field == "state":
        if wanted == _THROTTLED:
            return _throttled
        return lambda node, now: _all(node, node.standing(now).value == wanted)
    if field in _TEXTS:
        texts = _TEXTS[field]
        return lambda node, _: np.array(
            [any(_text_matches(text, wanted) for text in of_gpu) for of_gpu in texts(node)], dtype=bool
        )
    if index_matches := _gpu(wanted):
        return _and(lambda node, _: _all(node, _text_matches(node.name, field)), index_matches)
    raise FilterError(f"unknown field {field!r}{nearest(field, [*_TEXTS, *_COUNTED, 'state'])}")


def _gpu(wanted: str) -> Test | None:
    """Return the test for a GPU's index, as in "5", or a MIG instance's, as in "5.1"."""
    if _INSTANCE.fullmatch(wanted):
        return lambda node, _: np.array([f.label == wanted for f in node.facts] or [False])
    return _in_range(_COUNTED["gpu"], wanted) if wanted.isdecimal() and len(wanted) < 10 else None


def _in_range(numbers: Callable[[NodeState], Floats], wanted: str) -> Test:
    match = _RANGE.fullmatch(wanted)
    if match is None:
        raise FilterError(f"{wanted!r} is neither a number nor a range such as 0-3")
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
    "mig": lambda node: [[fact.mig_profile] for fact in node.facts] or [[]],
    "user": _of_processes("user"),
    "command": _of_processes("command"),
    "wchan": _of_processes("wchan"),
    "job": _of_processes("slurm_job"),
    "framework": _of_processes("framework"),
    "nccl": _of_processes("nccl"),
    "container": _of_processes("container"),
}
"""Texts to search: a list for each GPU of a node."""
