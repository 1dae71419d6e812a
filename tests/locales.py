"""A locale that isn't UTF-8, for programs that a test starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


class NoLocalesError(Exception):
    """Raised where the C library's sources of locales aren't installed; the message says what to install."""


def compile_latin1(folder: Path) -> dict[str, str]:
    """Compile en_US.ISO-8859-1 into a folder, and return the variables that select it."""
    if shutil.which("localedef") is None or not Path("/usr/share/i18n/locales/en_US").exists():
        raise NoLocalesError("no sources of locales on this machine: apt-get install locales")
    name = "en_US.ISO-8859-1"
    subprocess.run(["localedef", "-f", "ISO-8859-1", "-i", "en_US", str(folder / name)], check=True)
    environ = {"LOCPATH": str(folder), "LC_ALL": name, "LANG": name}
    script = "import sys; print(sys.stdout.encoding, sys.getfilesystemencoding())"
    python = [sys.executable, "-c", script]
    used = subprocess.run(python, env={**os.environ, **environ}, capture_output=True, text=True, check=True)
    assert used.stdout.split() == ["iso8859-1", "iso8859-1"]
    return environ
