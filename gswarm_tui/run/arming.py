"""Environment variables of a recorded command, by which it can be traced and asked later.

The reasons, and what was tried, are in docs/decisions/013-arming.md.
"""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from gswarm_agent import trace
from gswarm_agent.asking.flight_recorder import DUMPS, PIPE
from gswarm_tui.common.errors import print_notice
from gswarm_tui.common.processes import run_program

FIRST_TORCH = (2, 10)
"""Earlier versions of PyTorch may crash at their start if KINETO_USE_DAEMON is set."""
_NEW_NAMES = (2, 14)
"""PyTorch that records collectives unless a variable forbids it, and warns of older names of variables."""
_ENTRIES = "2000"
_SILENT = "5"  # Kineto prints an error every 5 s while nobody listens; 4 is ERROR
_PYTHON = re.compile(r"python[0-9.]*")
_SHOW_TORCH = (
    "import sys; sys.path[:] = filter(None, sys.path)\n"
    "from importlib.metadata import version; print(version('torch'))"
)
_PYTHON_S = 10.0


def arm(command: Sequence[str], environ: Mapping[str, str], recording: str) -> dict[str, str]:
    """Return the command's environment, and print what was set. Variables that are set already stay."""
    folder = trace.socket_folder(recording)
    # Kineto opens it once, perhaps before this node's agent makes it; and it obeys the owner of the folder.
    obstacle = trace.make_socket_folder(recording)
    torch = _torch_version(command, environ)
    numbers = re.match(r"(\d+)\.(\d+)", torch)
    version = (int(numbers[1]), int(numbers[2])) if numbers else None
    if not obstacle and version and version < FIRST_TORCH:
        obstacle = f"torch {torch} may crash with it; use {'.'.join(map(str, FIRST_TORCH))} or later"
    # PyTorch ends a process that can't make its pipe, so nobody may guess its name and take it.
    flight = f"{trace.FLIGHT_PREFIX}{secrets.token_hex(6)}-"
    if version and version >= _NEW_NAMES:
        wanted = {PIPE: flight, DUMPS[0]: flight}
    else:
        wanted = {PIPE: flight, DUMPS[1]: flight, "TORCH_NCCL_TRACE_BUFFER_SIZE": _ENTRIES}
    if obstacle:
        print_notice(f"no Kineto: {obstacle}")
    else:
        wanted |= {
            "KINETO_USE_DAEMON": "1",
            "KINETO_IPC_SOCKET_DIR": folder,
            "KINETO_LOG_LEVEL": _SILENT,
            "KINETO_ONDEMAND_TRACE_DIR": folder,
        }
    names = {
        "set for traces and hangs": wanted.keys() - environ.keys(),
        "kept yours": wanted.keys() & environ.keys(),
    }
    print_notice("; ".join(f"{what}: {', '.join(sorted(them))}" for what, them in names.items() if them))
    return wanted | dict(environ)


def clean_up(recording: str) -> None:
    """Remove the files that ``arm`` made for a recording on this machine, which may have no agent."""
    trace.remove_places(recording)


def _torch_version(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the version of PyTorch in the command's Python, or in the one on PATH; empty if unknown."""
    named = [word for word in command if _PYTHON.fullmatch(Path(word).name)]
    path = environ.get("PATH")
    found = (shutil.which(name, path=path) for name in (*named[:1], "python", "python3"))
    python = next(filter(None, found), None)
    if python is None:
        return ""
    try:
        done = run_program([python, "-c", _SHOW_TORCH], environ, timeout_s=_PYTHON_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
