"""The wall clock of a node's agent, as a test sets it: a shim in the agent's process, see clock.c."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

from tests.cluster.node import Node

_SOURCE = Path(__file__).with_name("clock.c")
_AHEAD = struct.Struct("=q")


class Clock:
    """What one node's agents take for the time. They have to be started after this is made."""

    def __init__(self, node: Node) -> None:
        shim = node.login.root / "clock.so"
        if not shim.exists():
            flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
            subprocess.run(["cc", *flags, str(_SOURCE), "-o", str(shim)], check=True)
        self._file = node.folder / "clock"
        self._file.write_bytes(_AHEAD.pack(0))
        with (node.folder / "sshd_config").open("a") as config:
            config.write(f"SetEnv LD_PRELOAD={shim} GSWARM_TEST_CLOCK={self._file}\n")
        node.stop_sshd()
        node.start_sshd()

    def set(self, ahead_s: int) -> None:
        """Be so many seconds ahead of the true time from now on."""
        with self._file.open("r+b") as file:
            file.write(_AHEAD.pack(ahead_s))
