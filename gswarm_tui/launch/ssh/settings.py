"""What the command line and the SSH configuration files say about reaching hosts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

SYSTEM_CONFIG = "/etc/ssh/ssh_config"


@dataclass(frozen=True)
class SshSettings:
    """What the command line says about SSH; empty is what ``ssh`` would do.

    ``config`` is a file in place of the user's and the system's, ``jump`` hosts as for ``ssh -J``.
    """

    user: str = ""
    config: str = ""
    jump: str = ""
    system_config: str = SYSTEM_CONFIG

    def config_files(self) -> list[str]:
        """The configuration files to read; the first that sets an option wins."""
        if self.config:
            return [self.config]
        usual = [Path("~/.ssh/config").expanduser(), Path(self.system_config)]
        return [str(path) for path in usual if os.access(path, os.R_OK)]
