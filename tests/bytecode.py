"""Bytecode of the program for the processes that tests and benches start."""

from __future__ import annotations

import os
import sys


def write_bytecode() -> None:
    """Write bytecode even with ``PYTHONDONTWRITEBYTECODE``: without it each process compiles the program."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
