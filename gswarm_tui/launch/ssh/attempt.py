"""One attempt to connect to one host: its SSH configuration, its known keys, and its banner.

docs/decisions/004-ssh-configuration.md gives the measurements behind the two caches here.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import asyncssh

from gswarm_tui.launch.ssh.asyncssh_internals import (
    TrustedKeys,
    configured,
    load_key_pairs,
    match_known_hosts,
    parse_known_hosts,
)

FileVersions = tuple[tuple[Path, int], ...]
"""Files that exist, with their modification times: a cache key that changes with the files."""
DEFAULT_KEYS = tuple(f"~/.ssh/id_{kind}" for kind in ("ed25519", "ecdsa", "rsa"))
_USER_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
_SYSTEM_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
_KEYSIGNS = tuple(
    f"/usr/{folder}/ssh-keysign" for folder in ("libexec/openssh", "lib/openssh", "lib/ssh", "libexec")
)
_LONGEST_BANNER = 4096


@dataclass
class Attempt(asyncssh.SSHClient):
    """One attempt to connect to a host, with all that explains its failure.

    ``options`` is what the SSH configuration sets for the host, None until it is read; ``host_keys`` are the
    lines of its ``KnownHostsCommand``; ``command`` is the ssh command that connects in the same way.
    """

    host: str
    options: asyncssh.SSHClientConnectionOptions | None = None
    host_keys: str = ""
    banner: str = ""
    host_is_known: bool = False
    wants_password: bool = False
    is_jump_host: bool = False
    command: str = ""

    def auth_banner_received(self, msg: str, lang: str) -> None:
        """Keep the server's banner: it often explains why the server refuses the user."""
        self.banner = f"{self.banner} {msg[:_LONGEST_BANNER]}"[:_LONGEST_BANNER]

    def password_auth_requested(self) -> None:
        """Note that the server would take a password."""
        self.wants_password = True

    def kbdint_auth_requested(self) -> None:
        """Note that the server would ask for a password or a code."""
        self.wants_password = True

    def is_set(self, name: str) -> bool:
        """Return whether the SSH configuration sets an option, and not to ``no``."""
        return self.options is not None and bool(configured(self.options, name))

    def files(self, name: str, default: Sequence[str] = ()) -> list[Path]:
        """Return the files that an option of the SSH configuration names."""
        paths = configured(self.options, name, default) if self.options else default
        return [Path(str(path)).expanduser() for path in cast("Sequence[object]", paths)]

    @property
    def known_hosts_files(self) -> list[Path]:
        """The files in which ssh would look for the host's key."""
        return [
            *self.files("UserKnownHostsFile", _USER_KNOWN_HOSTS),
            *self.files("GlobalKnownHostsFile", _SYSTEM_KNOWN_HOSTS),
        ]

    def key_pairs(self, keys: Sequence[Path]) -> list[asyncssh.SSHKeyPair]:
        """Return these private keys, to offer them. Raises OSError, ValueError."""
        certificates = [path for path in self.files("CertificateFile") if path.exists()]  # as ssh does
        versions = file_versions([*(Path(f"{key}-cert.pub") for key in keys), *certificates])
        pairs = _load_key_pairs(file_versions(keys), tuple(certificates), versions)
        # A connection sets a pair's signature algorithm, which depends on its server.
        return [copy.copy(pair) for pair in pairs]

    def keysign(self) -> str | None:
        """Return the program that signs with this machine's key, None where host-based logins don't use it.

        asyncssh doesn't look for it where SUSE has it, and can't use it through a ``ProxyCommand``.
        """
        if not self.is_set("EnableSSHKeySign") or (self.options and self.options.proxy_command):
            return None
        return next((path for path in _KEYSIGNS if os.access(path, os.X_OK)), None)

    def trusted_keys(self, host: str, _address: str, port: int | None) -> TrustedKeys:
        """Return a host's known keys, as asyncssh's ``known_hosts`` callback."""
        # Only the files are cached: the command prints other lines for each host.
        files = _read_known_hosts(file_versions(self.known_hosts_files))
        found = [
            match_known_hosts(known, host, port) for known in (files, parse_known_hosts([self.host_keys]))
        ]
        keys, authorities, revoked = ([*one, *other] for one, other in zip(*found, strict=True))
        self.host_is_known = bool(keys or authorities)
        return keys, authorities, revoked


def file_versions(paths: Iterable[Path]) -> FileVersions:
    """Return the files among ``paths`` that exist, with their modification times."""
    versions = []
    for path in paths:
        with contextlib.suppress(OSError):
            versions.append((path, path.stat().st_mtime_ns))
    return tuple(versions)


@functools.lru_cache(maxsize=4)
def _read_known_hosts(files: FileVersions) -> asyncssh.SSHKnownHosts:
    return parse_known_hosts(path.read_text("utf-8", "replace") for path, _ in files)


@functools.lru_cache(maxsize=4)
def _load_key_pairs(
    keys: FileVersions, certificates: Sequence[Path], _versions_of_certificates: FileVersions
) -> Sequence[asyncssh.SSHKeyPair]:
    """Load key pairs; an RSA key of 4,096 bits takes 0.2 s."""
    return load_key_pairs([path for path, _ in keys], certificates)
