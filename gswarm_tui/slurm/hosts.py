"""Host lists as Slurm writes them: expands them into node names and folds names into lists.

ClusterShell expands. Characters are checked first, because ClusterShell's syntax is wider (groups, wildcards,
set operators), and names afterwards, because they become arguments of other programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from gswarm_tui.common.errors import UserError, quote

MAX_NODES = 100_000

_INVALID_CHARACTER = re.compile(r"[^A-Za-z0-9_.,/\[\]-]")
# ClusterShell makes all numbers of a range before it can count them.
_LONG_NUMBER = re.compile(r"\[[^\]]*[1-9][0-9]{6}")
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
    for part in (part for word in words for text in word.split() for part in _parts(text) if part):
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


def _parts(text: str) -> Iterator[str]:
    """Split ``text`` at the commas outside brackets."""
    start = depth = 0
    for position, character in enumerate(text):
        if character in "[]":
            depth += 1 if character == "[" else -1
        elif character == "," and depth <= 0:
            yield text[start:position]
            start = position + 1
    yield text[start:]


def _expand_part(part: str) -> tuple[str, ...]:
    if part.startswith("-"):
        raise _InvalidPartError("a node name can't start with a dash")
    if character := _INVALID_CHARACTER.search(part):
        raise _InvalidPartError(f"a node name can't contain {quote(character[0])}")
    if _LONG_NUMBER.search(part):
        raise _InvalidPartError(f"a range is too long; the limit is {MAX_NODES:,} nodes")
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetParseError

    try:
        found = NodeSet(part, resolver=RESOLVER_NOGROUP) if "[" in part or "]" in part else (part,)
    except NodeSetParseError as error:  # bad range: "padding length mismatch : "8-012""
        reason = str(error).removeprefix('bad range: "').partition(":")[0].strip(' "')
        raise _InvalidPartError(reason) from None
    if len(found) > MAX_NODES:
        raise _InvalidPartError(f"it has {len(found):,} nodes; the limit is {MAX_NODES:,}")
    names = tuple(found)
    for name in names:
        if not _NAME.fullmatch(name):
            raise _InvalidPartError("it isn't a host name")
    return names
