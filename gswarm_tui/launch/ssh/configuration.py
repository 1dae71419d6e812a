"""SSH configuration files, parsed once for all hosts that they treat alike, such as the nodes of a cluster.

docs/decisions/004-ssh-caches.md says what this saves.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
from collections.abc import Iterable, Sequence
from fnmatch import translate
from pathlib import Path

import asyncssh

from gswarm_tui.launch.ssh.asyncssh_internals import read_options

FileVersions = tuple[tuple[Path, int], ...]
"""Files that exist, with their modification times: a cache key that changes with the files."""

_SECTION = re.compile(r"^[^\w#\n]*(?:host|match)\b.*$", re.IGNORECASE | re.MULTILINE)
_PLAIN_HOST = re.compile(r"\s*host((?:\s+[\w.*?-]+)+)\s*", re.IGNORECASE)
# A quotation or an escape, a host's name in a value, or lines from elsewhere.
_NOT_PLAIN = re.compile(r"[\"'\\%]|^[^\w#\n]*(?:include|canonical)", re.IGNORECASE | re.MULTILINE)
_MAX_SHARED = 64


def file_versions(paths: Iterable[Path]) -> FileVersions:
    """Return the files among ``paths`` that exist, with their modification times."""
    versions = []
    for path in paths:
        with contextlib.suppress(OSError):
            versions.append((path, path.stat().st_mtime_ns))
    return tuple(versions)


class Configuration:
    """SSH configuration files as asyncssh reads them; two hosts share options if the same sections apply."""

    def __init__(self) -> None:
        self._shared: dict[object, asyncssh.SSHClientConnectionOptions] = {}

    async def options(
        self, host: str, files: Sequence[str], user: str = "", port: int = 0
    ) -> asyncssh.SSHClientConnectionOptions:
        """Return the options that the files set for a host. Raises OSError, ValueError.

        ``user`` and ``port`` override the files. ``options.host`` may be another host that shares them.
        """
        versions = file_versions(map(Path, files))
        sections = _host_sections(versions)
        if sections is None:  # in a thread, because ``Match exec`` may run a slow command
            return await asyncio.to_thread(read_options, host, files, user, port)
        key = versions, user, port, tuple(bool(section.match(host)) for section in sections)
        if key not in self._shared:
            if len(self._shared) >= _MAX_SHARED:
                self._shared.clear()
            self._shared[key] = read_options(host, files, user, port)
        return self._shared[key]


@functools.lru_cache(maxsize=4)
def _host_sections(files: FileVersions) -> list[re.Pattern[str]] | None:
    """Return the patterns of all ``Host`` sections; None if options depend on the host in other ways, too."""
    text = "\n".join(path.read_text("utf-8", "replace") for path, _ in files)
    sections = [_PLAIN_HOST.fullmatch(line) for line in _SECTION.findall(text)]
    if _NOT_PLAIN.search(text):
        return None
    plain = [section for section in sections if section is not None]
    if len(plain) < len(sections):
        return None
    return [re.compile("|".join(map(translate, section[1].split()))) for section in plain]
