"""Sets the wall clock of single programs with a preloaded library, see clock.c."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

from tests.cluster.node import ClusterNode

_SOURCE = Path(__file__).with_name("clock.c")
_AHEAD = struct.Struct("=q")


class ProgramClock:
    """The wall clock of programs that run with ``env``; its files are in ``folder``."""

    def __init__(self, folder: Path) -> None:
        shim = folder / "clock.so"
        if not shim.exists():
            flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
            subprocess.run(["cc", *flags, str(_SOURCE), "-o", str(shim)], check=True)
        self._file = folder / "clock"
        self._file.write_bytes(_AHEAD.pack(0))
        self.env = {"LD_PRELOAD": str(shim), "GSWARM_TEST_CLOCK": str(self._file)}

    @classmethod
    def of_agents(cls, node: ClusterNode) -> ProgramClock:
        """Create the clock of one node's agents; call it before they start."""
        clock = cls(node.folder)
        with (node.folder / "sshd_config").open("a") as config:
            config.write(f"SetEnv {' '.join(f'{name}={value}' for name, value in clock.env.items())}\n")
        node.stop_sshd()
        node.start_sshd()
        return clock

    def set(self, ahead_s: int) -> None:
        """Set the clock this many seconds ahead of the true time."""
        with self._file.open("r+b") as file:
            file.write(_AHEAD.pack(ahead_s))
