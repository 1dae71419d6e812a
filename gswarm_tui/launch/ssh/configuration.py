"""The SSH configuration files as one host needs them: asyncssh reads a whole file for each connection.

Of a file that names hundreds of hosts, each with a section of its own, all but one section is left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

# A quoted word may be one, too. A comment isn't, so it stays in the section that it is in.
_BEGINS = re.compile(r"[^\w#]*(host|match)\b", re.IGNORECASE)
_LITERALLY = re.compile(r"\s*host((?:\s+[\w.-]+)+)\s*", re.IGNORECASE)
_HARD_TO_READ = re.compile(r"[\"'\\]")


@dataclass(frozen=True)
class Section:
    """Lines up to the next ``Host`` or ``Match``. ``hosts`` are all that they can be about, None for any."""

    hosts: frozenset[str] | None
    text: str


def split(lines: Sequence[str]) -> list[Section]:
    """The sections of a configuration; what it says of a host is what those say that may be about it.

    A section is of some hosts only where there is no doubt: without a pattern, a quotation or an escape.
    """
    parts: list[list[str]] = [[]]
    for line in lines:
        if _BEGINS.match(line):
            parts.append([])
        parts[-1].append(line)
    return [_section(part) for part in parts if part]


def _section(lines: Sequence[str]) -> Section:
    text, named = "".join(lines), _LITERALLY.fullmatch(lines[0])
    if named is None or _HARD_TO_READ.search(text):
        return Section(None, text)
    return Section(frozenset(named[1].split()), text)


class Configuration:
    """Configuration files, each read once and again when it changes; shared by all connections."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[tuple[int, int, int], list[Section]]] = {}

    @contextmanager
    def about(self, host: str, paths: Sequence[str]) -> Iterator[list[str]]:
        """Paths of what these files say that may be about a host, to be read within the context.

        Raises OSError and ValueError, as reading the files does.
        """
        with ExitStack() as stack:
            yield [self._about(host, path, stack) for path in paths]

    def _about(self, host: str, path: str, stack: ExitStack) -> str:
        sections = self._sections(path)
        kept = [one.text for one in sections if one.hosts is None or host in one.hosts]
        if len(kept) == len(sections):
            return path
        descriptor = os.memfd_create("ssh_config")
        stack.callback(os.close, descriptor)
        with open(descriptor, "w", closefd=False) as file:
            file.writelines(kept)
        return f"/proc/self/fd/{descriptor}"

    def _sections(self, path: str) -> list[Section]:
        found = Path(path).stat()
        stamp = found.st_mtime_ns, found.st_size, found.st_ino
        if path not in self._read or self._read[path][0] != stamp:
            with Path(path).open() as file:
                self._read[path] = stamp, split(list(file))
        return self._read[path][1]
