"""Checks the machine for what a test cluster needs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.cluster.login import SYSTEM_PATH
from tests.cluster.namespaces import NEW

_PACKAGES = {
    "slurm-wlm": ("slurmctld", "slurmd", "srun", "salloc"),
    "munge": ("munged",),
    "openssh-server": ("/usr/sbin/sshd",),
    "openssh-client": ("ssh", "ssh-keygen"),
    "iproute2": ("ip",),
    "environment-modules": ("/usr/share/modules/init/bash",),
    "tmux": ("tmux",),
    "gcc": ("gcc",),
    "likwid": ("likwid-perfctr",),
}


def missing() -> str | None:
    """Return what this machine lacks for a cluster and how to get it; None if nothing."""
    if os.geteuid() != 0:
        return "a test cluster makes network namespaces and runs daemons: run its tests as root"
    packages = [package for package, files in _PACKAGES.items() if not all(map(_present, files))]
    if packages:
        return f"a test cluster needs more Debian packages: apt-get install {' '.join(packages)}"
    trial = subprocess.run(["unshare", "--net", *NEW, "true"], check=False, capture_output=True, text=True)
    if trial.returncode != 0:
        return f"a test cluster needs namespaces, and this machine forbids them: {trial.stderr.strip()}"
    return None


def _present(file: str) -> bool:
    return shutil.which(file, path=SYSTEM_PATH) is not None or Path(file).exists()
