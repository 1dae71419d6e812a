"""Short names of kernels for tables: demangled C++ names differ only behind hundreds of equal characters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

_LONG = 60
"""Names of more characters are shortened."""
_UNNAMED = re.compile(r"(?:\(anonymous namespace\)|<unnamed>)::")
_LAMBDA = re.compile(r"::(?:\{lambda\([^{}]*\)#\d+\}|\[lambda\([^\[\]]*\) \(instance \d+\)\])")
_ARGUMENTS = re.compile(r"(?:::operator ?)?\([^()]*\)(?: const)?")
_QUALIFIERS = re.compile(r"\b\w+::(?=\w)|\b(?:void|static) (?=[\w:])| (?=>)")
_DEEPEST = 16
"""Levels of nested arguments that are removed."""


def short_names(names: Sequence[str]) -> list[str]:
    """Return names, long ones without namespaces, arguments and lambdas unless they would be alike."""
    short = [_shortened(name) for name in names]
    times = Counter(dict(zip(names, short, strict=True)).values())
    return [one if one and times[one] == 1 else name for one, name in zip(short, names, strict=True)]


def _shortened(name: str) -> str:
    if len(name) <= _LONG:
        return name
    text = _UNNAMED.sub("", name)
    for _ in range(_DEEPEST):
        before, text = text, _ARGUMENTS.sub("", _LAMBDA.sub("", text))
        if text == before:
            break
    return _QUALIFIERS.sub("", text).strip()
