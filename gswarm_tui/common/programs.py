"""Runs other programs."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence


def run_program(
    command: Sequence[str], environ: Mapping[str, str] | None = None, *, timeout_s: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; return its status and its output as text.

    Raises OSError if it can't be started, and subprocess.TimeoutExpired.
    """
    return subprocess.run(
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=timeout_s,
        check=False,
    )
