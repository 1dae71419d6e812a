"""The user's private keys, each file read once and again when it changes; shared by all connections.

To read an RSA key is to prove its primes: 0.11 s of CPU at 3,072 bits and 0.26 s at 4,096, which each
connection would cost otherwise, also where another key lets it in.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from pathlib import Path

import asyncssh

from gswarm_tui.launch.ssh.once import Once
from gswarm_tui.launch.ssh.stamps import stamp

DEFAULT_KEYS = tuple(f"~/.ssh/id_{kind}" for kind in ("ed25519", "ecdsa", "rsa"))
"""Which keys are offered where none is configured, or none of those is there."""
_MOST_KEPT = 16


def default_keys() -> list[Path]:
    """The files of these."""
    return [Path(key).expanduser() for key in DEFAULT_KEYS]


class Keys:
    """Key pairs by the files that hold them."""

    def __init__(self) -> None:
        self._read = Once[Sequence[asyncssh.SSHKeyPair]](_MOST_KEPT)

    async def pairs(
        self, paths: Sequence[Path], certificates: Sequence[Path] = (), *, only_private: bool = False
    ) -> list[asyncssh.SSHKeyPair]:
        """What these files offer, with certificates that fit; those that aren't there or are locked, nothing.

        With ``only_private`` a public key among them is passed over, too. Raises OSError, ValueError.
        """
        beside = (Path(f"{path}{end}") for path in paths for end in ("", ".pub", "-cert.pub"))
        key = only_private, *((path, stamp(path)) for path in (*beside, *certificates))

        def read() -> Sequence[asyncssh.SSHKeyPair]:
            return asyncssh.load_keypairs(
                [str(path) for path in paths if path.exists()],
                certlist=[str(path) for path in certificates],
                skip_public=only_private,
                ignore_encrypted=True,
            )

        pairs = await self._read.get(key, lambda: asyncio.to_thread(read))
        # A connection notes in a pair how it signs, which depends on its server.
        return [copy.copy(pair) for pair in pairs]
