"""Every use of asyncssh that its documentation doesn't promise.

``tests/unit/test_asyncssh_internals.py`` checks each function here against the installed asyncssh.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import asyncssh

TrustedKeys = tuple[Sequence[asyncssh.SSHKey], Sequence[asyncssh.SSHKey], Sequence[asyncssh.SSHKey]]
"""A host's keys, those of its certificate authorities, and revoked ones."""


def read_options(
    host: str, config_files: Sequence[str], user: str = "", port: int = 0, proxy_command: Sequence[str] = ()
) -> asyncssh.SSHClientConnectionOptions:
    """Read the options that configuration files set for a host, without keys. Raises OSError, ValueError.

    ``user``, ``port`` and ``proxy_command`` override the files.
    """
    return asyncssh.SSHClientConnectionOptions(
        host=host,
        config=config_files,
        client_keys=None,
        client_host_keysign=None,
        x509_trusted_certs=None,
        x509_trusted_cert_paths=[],
        username=user or (),
        port=port or (),
        proxy_command=proxy_command or (),
    )


def configured(options: asyncssh.SSHClientConnectionOptions, name: str, default: object = None) -> object:
    """Return the configured value of an OpenSSH option: a list, a text or a flag."""
    return options.config.get(name, default)


def load_key_pairs(keys: Sequence[Path], certificates: Sequence[Path]) -> Sequence[asyncssh.SSHKeyPair]:
    """Load private keys with their certificates, except encrypted ones. Raises OSError, ValueError.

    Public keys, which name those that an ssh-agent holds, are skipped.
    """
    pairs: list[asyncssh.SSHKeyPair] = []
    named = [str(path) for path in certificates]
    for key in keys:
        try:
            pairs += asyncssh.load_keypairs([str(key)], certlist=named, ignore_encrypted=True)
        except ValueError as error:
            if not _is_public(key):
                raise ValueError(f"{key}: {error}") from error
    return pairs


def _is_public(key: Path) -> bool:
    try:
        asyncssh.read_public_key(key)
    except ValueError:
        return False
    return True


def parse_known_hosts(texts: Iterable[str]) -> asyncssh.SSHKnownHosts:
    """Parse known-hosts files together, skipping invalid lines as ssh does."""
    known = asyncssh.SSHKnownHosts()
    for text in texts:
        for line in text.splitlines():
            with contextlib.suppress(ValueError):
                known.load(line)
    return known


def match_known_hosts(known: asyncssh.SSHKnownHosts, host: str, port: int | None) -> TrustedKeys:
    """Return the known keys of a host; ``port`` is None for the standard port."""
    return known.match(host, "", port)[:3]


def is_revoked(error: asyncssh.HostKeyNotVerifiable) -> bool:
    """Return whether a host key was refused because known_hosts revokes it."""
    return "revoked" in error.reason


def is_about_host_key(error: asyncssh.DisconnectError) -> bool:
    """Return whether a key exchange failed because of the host key."""
    return "host key" in error.reason.lower()


def needs_passphrase(error: ValueError) -> bool:
    """Return whether a private key couldn't be loaded because it is encrypted."""
    return isinstance(error, asyncssh.KeyEncryptionError) or "passphrase" in str(error).lower()
