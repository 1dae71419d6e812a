"""Host files: one host a line, as Open MPI, MPICH and the schedulers write them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gswarm_tui.common.errors import UserError, printable
from gswarm_tui.slurm import hosts

_SLOTS = re.compile(r"([^:]+):[0-9]+")
_OPTION = "--hostfile"
_SETTING = re.compile(r"[0-9]+|[A-Za-z_][\w-]*[:=]\S*")


def read_hosts(path: Path, *, first_column: bool = False, named_by: str = _OPTION) -> tuple[str, ...]:
    """Return the hosts in a file, each once, in the order given.

    A line holds hosts or host lists, with ``slots=4``, ``:4`` or ``4`` after them; ``#`` starts a comment.
    With ``first_column`` only a line's first word is a host. ``named_by`` is the option or variable
    with its path.

    Raises:
        UserError: the file can't be read, holds no host, or a line isn't a host list.
    """
    shown = f"{named_by}: {printable(str(path))}"
    try:
        if not path.is_file():
            raise UserError(f"{shown} isn't a file{_remedy(named_by)}.")
        content = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{shown} can't be read: {error.strerror}{_remedy(named_by)}.") from None
    found: dict[str, None] = {}
    for number, line in enumerate(content.splitlines(), 1):
        words = list(_hosts_in(line, first_column=first_column))
        found.update(dict.fromkeys(hosts.expand(words, f"{shown}, line {number}")))
    if not found:
        raise UserError(f"{shown} names no host{_remedy(named_by)}.")
    return tuple(found)


def _hosts_in(line: str, *, first_column: bool) -> Iterator[str]:
    words = line.partition("#")[0].split()
    for position, word in enumerate(words):
        if position and (first_column or _SETTING.fullmatch(word)):
            continue
        slots = _SLOTS.fullmatch(word)
        yield slots[1] if slots else word


def _remedy(named_by: str) -> str:
    if named_by == _OPTION:
        return "; name a file with one host on each line"
    return "; name nodes with --nodes or --hostfile"
