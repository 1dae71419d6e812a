"""What the SSH configuration files say of hosts: asyncssh reads whole files for each connection.

Of a file that names hundreds of hosts, each with a section of its own, all but one section is left out. What
is said of many hosts alike, as of all nodes of a cluster, is parsed once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path

import asyncssh

from gswarm_tui.launch.ssh.once import Once
from gswarm_tui.launch.ssh.stamps import Stamp, stamp

# A quoted word may be one, too. A comment isn't, so it stays in the section that it is in.
_BEGINS = re.compile(r"[^\w#]*(host|match)\b", re.IGNORECASE)
_PLAINLY = re.compile(r"\s*host((?:\s+[\w.*?-]+)+)\s*", re.IGNORECASE)
_HARD_TO_READ = re.compile(r"[\"'\\]")
# A name in a value, a condition, or lines from elsewhere.
_DEPENDS_ON_THE_HOST = re.compile(r"%|^[^\w#]*(include|canonical)", re.IGNORECASE | re.MULTILINE)
_MOST_KEPT = 16
"""Of what is said of hosts; a cluster has one or two kinds of them."""


@dataclass(frozen=True)
class Section:
    """Lines up to the next ``Host`` or ``Match``.

    ``hosts`` fits all hosts that they can be about, None for any; ``alike`` tells that they mean the same for
    each of them.
    """

    hosts: re.Pattern[str] | None
    text: str
    alike: bool


def split(lines: Sequence[str]) -> list[Section]:
    """The sections of a configuration; what it says of a host is what those say that may be about it.

    A section is of some hosts only where there is no doubt: without a quotation, an escape or an exception.
    """
    parts: list[list[str]] = [[]]
    for line in lines:
        if _BEGINS.match(line):
            parts.append([])
        parts[-1].append(line)
    return [_section(part) for part in parts if part]


def _section(lines: Sequence[str]) -> Section:
    named, text = _PLAINLY.fullmatch(lines[0]), "".join(lines)
    if named is None or _HARD_TO_READ.search(text):
        unconditional = not _BEGINS.match(lines[0])
        return Section(None, text, unconditional and not _DEPENDS_ON_THE_HOST.search(text))
    # It is left out where it isn't about a host, so where it is left in, nothing need be compared again.
    text = "".join(["Match all\n", *lines[1:]])
    hosts = re.compile("|".join(map(translate, named[1].split())))
    return Section(hosts, text, not _DEPENDS_ON_THE_HOST.search(text))


@dataclass(frozen=True)
class Said:
    """What each file says that may be about a host; ``alike`` if for all hosts of which just this is said."""

    texts: tuple[str, ...]
    alike: bool

    @contextmanager
    def files(self) -> Iterator[list[str]]:
        """Paths to read it from within the context. Raises OSError."""
        with ExitStack() as stack:
            yield [_as_file(text, stack) for text in self.texts]


def _as_file(text: str, stack: ExitStack) -> str:
    descriptor = os.memfd_create("ssh_config")
    stack.callback(os.close, descriptor)
    with open(descriptor, "w", closefd=False) as file:
        file.write(text)
    return f"/proc/self/fd/{descriptor}"


class Configuration:
    """Configuration files, each read once and again when it changes; shared by all connections."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[Stamp, list[Section]]] = {}
        self._alike = Once[asyncssh.SSHClientConnectionOptions](_MOST_KEPT)

    async def options(
        self, host: str, paths: Sequence[str], user: str = "", port: int = 0
    ) -> asyncssh.SSHClientConnectionOptions:
        """What these files say of a host, and the user and port where given. Raises OSError, ValueError.

        They may have been parsed for another host, of which they say the same.
        """
        try:
            said = self.about(host, paths)
            if not said.alike:
                return await _parse_text(host, said, user, port)
            return await self._alike.get((said, user, port), lambda: _parse_text(host, said, user, port))
        except (OSError, ValueError):  # told with the file and the line that a person can look at
            return await _parse(host, paths, user, port)

    def about(self, host: str, paths: Sequence[str]) -> Said:
        """What these files say that may be about a host. Raises OSError, ValueError."""
        kept = [
            [one for one in self._sections(path) if one.hosts is None or one.hosts.match(host)]
            for path in paths
        ]
        texts = ("".join(section.text for section in sections) for sections in kept)
        return Said(tuple(texts), all(section.alike for sections in kept for section in sections))

    def _sections(self, path: str) -> list[Section]:
        now = stamp(Path(path))
        if now is None or path not in self._read or self._read[path][0] != now:
            with Path(path).open() as file:
                self._read[path] = now, split(list(file))
        return self._read[path][1]


async def _parse_text(host: str, said: Said, user: str, port: int) -> asyncssh.SSHClientConnectionOptions:
    with said.files() as files:
        return await _parse(host, files, user, port)


async def _parse(
    host: str, paths: Sequence[str], user: str, port: int
) -> asyncssh.SSHClientConnectionOptions:
    options: asyncssh.SSHClientConnectionOptions = await asyncssh.SSHClientConnectionOptions.construct(
        host=host,
        config=paths,
        client_keys=None,
        x509_trusted_certs=None,
        x509_trusted_cert_paths=[],
        username=user or (),
        port=port or (),
    )
    return options
