"""One way into one host: what is known of it before, and what is learned on the way."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import asyncssh

from gswarm_tui.launch.ssh.stamps import Stamp, stamp

_USER_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
_SYSTEM_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
_HOST_KEY_TYPES = [
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
]
_SSH_PORT = 22
_LONGEST_BANNER = 4096

TrustedKeys = tuple[Sequence[asyncssh.SSHKey], Sequence[asyncssh.SSHKey], Sequence[asyncssh.SSHKey]]


class KnownHosts:
    """Known-hosts files, each parsed once and again when it changes; shared by all connections."""

    def __init__(self) -> None:
        self._parsed: dict[tuple[Path, ...], tuple[list[Stamp], asyncssh.SSHKnownHosts]] = {}

    def read(self, paths: Sequence[Path]) -> asyncssh.SSHKnownHosts:
        """What these files say together; files that aren't there and lines that can't be read say nothing."""
        key, stamps = tuple(paths), [stamp(path) for path in paths]
        if key not in self._parsed or self._parsed[key][0] != stamps:
            known = asyncssh.SSHKnownHosts()
            for path in (path for path, found in zip(paths, stamps, strict=True) if found is not None):
                for line in path.read_text("utf-8", "replace").splitlines():
                    with contextlib.suppress(ValueError):
                        known.load(line)
            self._parsed[key] = stamps, known
        return self._parsed[key][1]


@functools.lru_cache(maxsize=64)
def _expanded(path: str) -> Path:
    """A path as a configuration names it, mostly for all hosts alike."""
    return Path(path).expanduser()


@dataclass
class Attempt(asyncssh.SSHClient):
    """What is learned on the way into one host, to explain a failure.

    ``options`` are what the configuration says of it, perhaps read for another of which it says the same.
    """

    host: str
    known: KnownHosts
    options: asyncssh.SSHClientConnectionOptions | None = None
    banner: str = ""
    host_is_known: bool = False
    _trusted: dict[tuple[str, int | None], TrustedKeys] = field(default_factory=dict)

    def auth_banner_received(self, msg: str, lang: str) -> None:
        """Keep what the server says before it lets anybody in, which is often why it doesn't."""
        self.banner = f"{self.banner} {msg[:_LONGEST_BANNER]}"[:_LONGEST_BANNER]

    def configured(self, name: str, default: Sequence[str]) -> list[Path]:
        """The files that an option of the SSH configuration names."""
        named = self.options.config.get(name, default) if self.options else default
        return [_expanded(str(one)) for one in cast("Sequence[object]", named)]

    @property
    def agent_path(self) -> str:
        """The socket of the ssh-agent; empty where there is none."""
        named = (
            self.options.config.get("IdentityAgent", os.environ.get("SSH_AUTH_SOCK")) if self.options else ""
        )
        return str(named or "")

    @property
    def known_hosts_files(self) -> list[Path]:
        """The files in which ssh would look for the host's key."""
        return [
            *self.configured("UserKnownHostsFile", _USER_KNOWN_HOSTS),
            *self.configured("GlobalKnownHostsFile", _SYSTEM_KNOWN_HOSTS),
        ]

    def host_key_algorithms(self) -> list[str]:
        """What to ask the server for: the types of the keys that are known of it, then all others.

        With the known ones alone, a host whose only key is of another type would just hang up.
        """
        if self.options is None or self.options.config.get("HostKeyAlgorithms"):
            return []
        host = str(self.options.host_key_alias or self.options.config.get("Hostname", self.host))
        port = self.options.port if self.options.port != _SSH_PORT else None
        keys, authorities, _ = self.trusted_keys(host, "", port)
        if authorities or not keys:
            return []
        return list(dict.fromkeys([a.decode() for key in keys for a in key.sig_algorithms] + _HOST_KEY_TYPES))

    def trusted_keys(self, host: str, _address: str, port: int | None) -> TrustedKeys:
        """For asyncssh: the host's keys, those of authorities, and revoked ones."""
        if (host, port) not in self._trusted:
            self._trusted[host, port] = self.known.read(self.known_hosts_files).match(host, "", port)[:3]
        found = self._trusted[host, port]
        self.host_is_known = bool(found[0] or found[1])
        return found
