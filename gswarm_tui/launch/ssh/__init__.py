"""Starts agents over SSH with the user's own configuration, ssh-agent, keys and known hosts.

It never prompts and never accepts a host key: where ssh would prompt, it reports an error with its remedy.
"""

from __future__ import annotations

from gswarm_tui.launch.ssh.launcher import SshLauncher, SshSettings

__all__ = ["SshLauncher", "SshSettings"]
