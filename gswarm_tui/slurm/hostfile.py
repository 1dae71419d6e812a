"""Host files: one host a line, as Open MPI, MPICH and the schedulers write them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gswarm_tui.common.errors import UserError, printable
from gswarm_tui.slurm import hosts

_SLOTS = re.compile(r"([^:]+):[0-9]+")
_SETTING = re.compile(r"[0-9]+|[A-Za-z_][\w-]*[:=]\S*")


def read_hosts(path: Path) -> tuple[str, ...]:
    """Return the hosts in a file, each once, in the order given.

    A line holds hosts or host lists, with ``slots=4``, ``:4`` or ``4`` after them; ``#`` starts a comment.

    Raises:
        UserError: the file can't be read, holds no host, or a line isn't a host list.
    """
    shown = f"--hostfile: {printable(str(path))}"
    try:
        content = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{shown} can't be read: {error.strerror}.") from None
    found: dict[str, None] = {}
    for number, line in enumerate(content.splitlines(), 1):
        found.update(dict.fromkeys(hosts.expand(_hosts_in(line), f"{shown}, line {number}")))
    if not found:
        raise UserError(f"{shown} names no host; name a file with one host on each line.")
    return tuple(found)


def _hosts_in(line: str) -> Iterator[str]:
    for position, word in enumerate(line.partition("#")[0].split()):
        if not (position and _SETTING.fullmatch(word)):
            slots = _SLOTS.fullmatch(word)
            yield slots[1] if slots else word
