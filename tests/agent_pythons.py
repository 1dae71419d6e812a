"""Installed interpreters with which the agent is tested: Python 3.9 to 3.14."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

VERSIONS = tuple(f"3.{minor}" for minor in range(9, 15))


@functools.cache
def agent_pythons() -> dict[str, str]:
    """Return one working interpreter for each version that is installed, by ``MAJOR.MINOR``.

    They are looked for among those of pyenv and on the PATH, where pyenv's shims take ten times as long.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    pythons = {f"{sys.version_info.major}.{sys.version_info.minor}": sys.executable}
    for version in VERSIONS:
        installed = [str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python{version}"))]
        for path in filter(None, [*installed, shutil.which(f"python{version}")]):
            if version not in pythons and _version_of(path) == version:
                pythons[version] = path
    return {version: pythons[version] for version in VERSIONS if version in pythons}


def _version_of(python: str) -> str:
    done = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
    match = re.match(r"Python (\d+\.\d+)\.", done.stdout)
    return match[1] if match and done.returncode == 0 else ""
