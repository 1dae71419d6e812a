"""Libraries that show a program another machine, loaded by ``LD_PRELOAD``."""

from __future__ import annotations

import subprocess
from pathlib import Path


def compiled(source: str, folder: Path, *options: str) -> Path:
    """Compile a file of this folder to a library in another one, and return it."""
    library = folder / f"{source}.so"
    path = Path(__file__).with_name(source)
    subprocess.run(
        ["cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", *options, path, "-o", library], check=True
    )
    return library
