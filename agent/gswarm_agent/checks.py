"""Checks of a node for ``gswarm-tui doctor``: Python, spool folder, rights to counters. Only reads."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gswarm_agent import __version__
from gswarm_agent.folder import owner_of, problems_of, tops

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Sequence

_MOST_READ = 65536


def check(
    root: str = "/", folders: Optional[Sequence[str]] = None, python: str = sys.executable
) -> Dict[str, Any]:
    """Return the checks of this node by name; None where the node has no answer.

    ``spool_folder`` is where frames would wait, None if no folder can be private; ``spool_problems`` has a
    clause for each folder that others hold. ``gpu_counters_admin_only`` is the driver's setting.
    ``likwid_lock_owner`` is the only user who may read hardware counters with LIKWID.
    """
    candidates = tops() if folders is None else tuple(folders)
    folder = next(filter(_usable, candidates), None)
    return {
        "agent_version": __version__,
        "python": python,
        "python_version": ".".join(map(str, sys.version_info[:3])),
        "spool_folder": folder,
        "spool_free_mib": None if folder is None else _free_mib(Path(folder)),
        "spool_problems": problems_of(candidates),
        "perf_event_paranoid": _number(Path(root, "proc/sys/kernel/perf_event_paranoid")),
        "gpu_counters_admin_only": _admin_only(Path(root, "proc/driver/nvidia/params")),
        "likwid_lock_owner": _owner(Path(root, "var/run/likwid.lock")),
    }


def _usable(folder: str) -> bool:
    """Return whether an agent could keep frames in a folder, which need not exist yet."""
    if os.path.lexists(folder):
        return not problems_of((folder,))
    return os.access(Path(folder).parent, os.W_OK | os.X_OK)


def _free_mib(folder: Path) -> Optional[int]:
    """Return what is free to this user on a folder's file system."""
    try:
        found = os.statvfs(folder if folder.exists() else folder.parent)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize // 1024**2


def _number(path: Path) -> Optional[int]:
    try:
        return int(_read(path))
    except (OSError, ValueError):
        return None


def _admin_only(path: Path) -> Optional[bool]:
    """Return whether the NVIDIA driver lets only administrators read GPU counters (RmProfilingAdminOnly)."""
    try:
        settings = dict(line.split(": ", 1) for line in _read(path).splitlines() if ": " in line)
    except OSError:
        return None
    value = settings.get("RmProfilingAdminOnly")
    return None if value is None else value.strip() == "1"


def _owner(path: Path) -> Optional[str]:
    try:
        return owner_of(path.stat())
    except OSError:
        return None


def _read(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(_MOST_READ)
