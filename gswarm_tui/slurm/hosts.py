"""Node names: host lists as Slurm and people write them, expanded and folded.

ClusterShell does the expanding. What goes in is checked first, because its own language is wider than a
host list (groups, wildcards, set operators), and because names end up on other programs' command lines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from gswarm_tui.common.errors import UserError, quote

MAX_NODES = 100_000
_LONGEST_RANGE = 10**9
"""What ClusterShell can count from the first to the last, whatever the step."""

_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18})(?:/([0-9]{1,18}))?)?")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_STRANGE = re.compile(r"[^A-Za-z0-9_.-]")
# RFC 1035 labels, and the underscore that clusters use in spite of it.
_NAME = re.compile(r"(?=.{1,253}\Z)(?!-)[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*")


class HostListError(UserError):
    """A host list that can't be read; names the part and what is wrong with it."""


class _UnreadableError(ValueError):
    """Why one part can't be read."""


def expand(words: Iterable[str], source: str = "--nodes") -> tuple[str, ...]:
    """All node names of ``words``, each once, in the order given; within a range in natural order.

    Takes what ``scontrol show hostnames`` prints and what people paste: names, commas, white space,
    ``gpu[01-04,07]``, IPv6 addresses, and any mixture. ``source`` is where the words come from, for errors.

    Raises:
        HostListError: a part isn't a host list, a name isn't a host name, or there are more than MAX_NODES.
    """
    names: dict[str, None] = {}
    for part in (part for word in words for text in word.split() for part in _parts(text) if part):
        try:
            names.update(dict.fromkeys(_expand_part(part)))
            if len(names) > MAX_NODES:
                raise _UnreadableError(f"that makes more than {MAX_NODES:,} nodes")
        except _UnreadableError as error:
            raise HostListError(f"{source}: can't read {quote(part)}: {error}.") from None
    return tuple(names)


def fold(names: Iterable[str]) -> str:
    """The host list of ``names``, such as ``gpu[01-04,07]``; ``expand`` of it gives the same names."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    hosts: list[str] = []
    others: list[str] = []  # addresses, and whatever a file says that isn't of this program
    for name in names:
        (hosts if _NAME.fullmatch(name) else others).append(name)
    folded = str(NodeSet.fromlist(hosts, resolver=RESOLVER_NOGROUP))
    return ",".join(filter(None, [folded, *others]))


def _parts(text: str) -> Iterator[str]:
    """``text`` cut at the commas outside brackets."""
    start = depth = 0
    for position, character in enumerate(text):
        if character in "[]":
            depth += 1 if character == "[" else -1
        elif character == "," and depth <= 0:
            yield text[start:position]
            start = position + 1
    yield text[start:]


def _expand_part(part: str) -> tuple[str, ...]:
    if _is_ipv6(part):
        return (part,)
    if part.startswith("-"):
        raise _UnreadableError("a node name can't begin with a dash")
    plain = _BRACKETS.sub("", part)
    if "[" in plain or "]" in plain:
        raise _UnreadableError("missing bracket")
    if strange := _STRANGE.search(plain):
        raise _UnreadableError(f"{quote(strange[0])} has no place in a node name")
    names = _expand_ranges(part) if "[" in part else (part,)
    for name in names:
        if not _NAME.fullmatch(name):
            raise _UnreadableError("that isn't a host name")
    return names


def _expand_ranges(part: str) -> tuple[str, ...]:
    """``part`` expanded by ClusterShell, once its ranges are known to be plain and of a bearable size."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetParseError

    count = math.prod(sum(map(_count, inside.split(","))) for inside in _BRACKETS.findall(part))
    if count > MAX_NODES:
        raise _UnreadableError(f"that makes {count:,} nodes, and {MAX_NODES:,} are the most")
    try:
        return tuple(NodeSet(part, resolver=RESOLVER_NOGROUP))
    except NodeSetParseError as error:  # bad range: "padding length mismatch : "8-012""
        why = str(error).removeprefix('bad range: "').partition(":")[0].strip()
        raise _UnreadableError(why) from None


def _count(item: str) -> int:
    """How many names a range makes: 5, 1-8 or 0-14/2."""
    match = _RANGE.fullmatch(item)
    if match is None:
        raise _UnreadableError(f'"{item}" isn\'t a range such as 01-04')
    first = int(match[1])
    last = int(match[2] or first)
    step = int(match[3] or 1)
    if last < first or step == 0:
        raise _UnreadableError(f"the range {quote(item)} is empty")
    count = (last - first) // step + 1
    if last - first >= _LONGEST_RANGE and count <= MAX_NODES:
        raise _UnreadableError(f"the range {quote(item)} is too long")
    return count


def _is_ipv6(text: str) -> bool:
    if ":" not in text or "%" in text:  # a scope may hold any character, and means nothing on other machines
        return False
    import ipaddress

    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
