"""Bytecode of the program for the processes that tests and benches start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_FOLDER = Path(__file__).parents[1] / ".pytest_cache/bytecode"


def write_bytecode() -> None:
    """Write bytecode away from the sources where ``PYTHONDONTWRITEBYTECODE`` is set.

    Without bytecode each process would compile the program.
    """
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(_FOLDER)
        sys.dont_write_bytecode = False
