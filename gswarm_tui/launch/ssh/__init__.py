"""Starts agents over SSH, as the user's own ``ssh`` would: their configuration, agent, keys and known hosts.

Nothing is ever asked for or accepted silently: what ssh would ask about is an error with its remedy.
"""

from __future__ import annotations

from gswarm_tui.launch.ssh.launcher import SshLauncher
from gswarm_tui.launch.ssh.settings import SshSettings

__all__ = ["SshLauncher", "SshSettings"]
