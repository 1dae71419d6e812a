"""Host lists as Slurm writes them: expands them into node names and folds names into lists.

Lists expand in Slurm's order, in which ranks are counted; ClusterShell, which folds, sorts names. Names are
checked, because they become arguments of other programs.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable

from gswarm_tui.common.errors import UserError, quote

MAX_NODES = 100_000

_INVALID_CHARACTER = re.compile(r"[^A-Za-z0-9_.,/\[\]-]")
# A part ends at white space or a comma, but not at one inside brackets.
_PART = re.compile(r"(?:\[[^\[\]\s]*\]|[^\s,])+")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18})(?:/([0-9]{1,18}))?)?")
# RFC 1035 labels, plus the underscore that clusters use.
_NAME = re.compile(r"(?=.{1,253}\Z)(?!-)[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*")


class HostListError(UserError):
    """Raised for an invalid host list; the message names the offending part."""


class _InvalidPartError(ValueError):
    """Raised for an invalid part, with the reason."""


def expand(words: Iterable[str], source: str = "--nodes") -> tuple[str, ...]:
    """Expand host lists into node names, each once, in the order given.

    Accepts the output of ``scontrol show hostnames`` and any mixture of names, commas, white space and
    ``gpu[01-04,07]``. ``source`` names the input in errors.

    Raises:
        HostListError: a part isn't a host list, a name isn't a host name, or there are more than MAX_NODES.
    """
    names: dict[str, None] = {}
    for part in _PART.findall(" ".join(words)):
        try:
            names.update(dict.fromkeys(_expand_part(part)))
            if len(names) > MAX_NODES:
                raise _InvalidPartError(f"the list has more than {MAX_NODES:,} nodes")
        except _InvalidPartError as error:
            raise HostListError(f"{source}: {quote(part)} is invalid: {error}.") from None
    return tuple(names)


def fold(names: Iterable[str]) -> str:
    """Fold names into a host list such as ``gpu[01-04,07]``; ``expand`` returns the same names."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    hosts: list[str] = []
    others: list[str] = []  # addresses, and names in files of other programs
    for name in names:
        (hosts if _NAME.fullmatch(name) else others).append(name)
    folded = str(NodeSet.fromlist(hosts, resolver=RESOLVER_NOGROUP))
    return ",".join(filter(None, [folded, *others]))


def short_name(name: str) -> str:
    """Return a host's name without its domain."""
    return name.partition(".")[0]


def _expand_part(part: str) -> tuple[str, ...]:
    if part.startswith("-"):
        raise _InvalidPartError("a node name can't start with a dash")
    if character := _INVALID_CHARACTER.search(part):
        raise _InvalidPartError(f"a node name can't contain {quote(character[0])}")
    literals, brackets = _BRACKETS.split(part)[::2], [_numbers(one) for one in _BRACKETS.findall(part)]
    if bracket := re.search(r"[\[\]]", "".join(literals)):
        raise _InvalidPartError("missing bracket" if bracket[0] == "[" else "illegal closing bracket")
    if (count := math.prod(map(len, brackets))) > MAX_NODES:
        raise _InvalidPartError(f"it has {count:,} nodes; the limit is {MAX_NODES:,}")
    # As Slurm does, count up the last bracket first, and then the others from left to right.
    names = []
    for counted in itertools.product(*brackets[-2::-1], *brackets[-1:]):
        pieces = itertools.zip_longest(literals, (*counted[-2::-1], *counted[-1:]), fillvalue="")
        names.append("".join(itertools.chain(*pieces)))
        if not _NAME.fullmatch(names[-1]):
            raise _InvalidPartError("it isn't a host name")
    return tuple(names)


def _numbers(ranges: str) -> list[str]:
    """Expand ranges such as ``01-04,07`` or ``0-6/2``; the first number of each says how wide all are."""
    numbers: list[str] = []
    for text in ranges.split(","):
        if not (found := _RANGE.fullmatch(text)):
            raise _InvalidPartError(f"{quote(text)} isn't a number or a range")
        first, last, step = found[1], int(found[2] or found[1]), int(found[3] or 1)
        if last < int(first) or step < 1:
            raise _InvalidPartError(f"the range {quote(text)} is empty")
        if (last - int(first)) // step + len(numbers) >= MAX_NODES:
            raise _InvalidPartError(f"a range is too long; the limit is {MAX_NODES:,} nodes")
        numbers += [f"{number:0{len(first)}}" for number in range(int(first), last + 1, step)]
    return numbers
