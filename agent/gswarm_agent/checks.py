"""Checks of a node for ``gswarm-tui doctor``: Python, spool folder, rights to counters. Only reads."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gswarm_agent import __version__
from gswarm_agent.folder import problems_of, tops
from gswarm_agent.probes.counter_rights import ProfilerWatch, RightsReader
from gswarm_agent.probes.counter_tools import find_perf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Sequence


def check(root: str = "/", folders: Optional[Sequence[str]] = None) -> Dict[str, Any]:
    """Return the checks of this node by name; None where the node has no answer.

    ``spool_folder`` is where frames would wait, None if no folder can be private; ``spool_problems`` has a
    clause for each folder that others hold. ``cpu_counters`` and ``gpu_counters`` say who may use them, and
    ``counter_obstacle`` why this user may not; see ``CounterRights``.
    """
    candidates = tops() if folders is None else tuple(folders)
    folder = next((one for one in candidates if not problems_of((one,))), None)
    return {
        "agent_version": __version__,
        "python": sys.executable,
        "python_version": ".".join(map(str, sys.version_info[:3])),
        "spool_folder": folder,
        "spool_free_mib": None if folder is None else _free_mib(Path(folder)),
        "spool_problems": problems_of(candidates),
        **_counters(root),
    }


def _free_mib(folder: Path) -> Optional[int]:
    """Return what is free to this user on a folder's file system."""
    try:
        found = os.statvfs(folder if folder.exists() else folder.parent)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize // 1024**2


def _counters(root: str) -> Dict[str, Any]:
    """Return the node's ``CounterRights`` and which tools can count, by names of ``check``."""
    profiler = ProfilerWatch(f"{root.rstrip('/')}/proc").look_at_all()
    rights = RightsReader(root).read()
    return {
        "perf_event_paranoid": rights.paranoid,
        "counter_privileges": rights.privileges,
        "gpu_counters_admin_only": rights.gpu_admin_only,
        "likwid_lock_owner": rights.lock_owner,
        "counter_obstacle": rights.obstacle,
        "cpu_counters": rights.cpu,
        "gpu_counters": rights.gpu,
        "counter_tools": ["perf"] if find_perf() is not None else [],
        "counters_in_use_by": profiler or None,
    }
