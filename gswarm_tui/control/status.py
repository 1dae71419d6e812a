"""State of a running recorder, its nodes and its sessions, as values of messages.

A value that wasn't measured is None.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from pathlib import Path
from typing import Any

from gswarm_agent import __version__
from gswarm_tui.control.execution import rounded, session_row
from gswarm_tui.fleet.findings import holding
from gswarm_tui.fleet.frame_values import POWER, UTIL
from gswarm_tui.fleet.node import NodeState
from gswarm_tui.fleet.totals import MEMORY, measured, totals
from gswarm_tui.link.hub import Run

_OF_FINDING = ("kind", "severity", "node", "gpu", "sentence")


def head_status(run: Run, path: Path | None, uid: str, label: str) -> dict[str, Any]:
    """Return the state of a head: its recording, its nodes and GPUs, its recorder.

    ``label`` names the nodes' job, such as "job 4711". ``states`` counts the nodes by state, ``rows``
    the committed rows, ``waiting`` the events that aren't committed; ``lag_ms`` is the worst lateness of a
    sample, ``step_s`` the step time that the traffic shows. ``error`` is None while everything is recorded.
    ``finding`` is the first of the ``findings`` that hold.
    """
    now, recorder = run.now(), run.recorder
    found = holding(run.fleet.findings.values())
    sums = totals(run.fleet, now)
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "version": __version__,
        "path": None if path is None else str(path),
        "uid": uid or None,
        "job": label or None,
        "started_at": run.started_at,
        "now": now,
        "interval_ms": run.fleet.interval_ms,
        "metrics": list(run.fleet.metrics),
        "nodes": list(run.fleet.nodes),
        "states": dict(Counter(node.standing(now).value for node in run.fleet.nodes.values())),
        "gpus": sums.gpus,
        "busy_gpus": sums.busy,
        "mean_util_pct": rounded(sums.mean_util),
        "power_w": rounded(sums.power_w),
        "energy_j": rounded(sums.energy_j),
        "rows": None if recorder is None else recorder.rows,
        "file_bytes": None if recorder is None else recorder.file_bytes,
        "waiting": None if recorder is None else recorder.waiting,
        "lag_ms": rounded(sums.lag_ms),
        "error": None if recorder is None else recorder.error or None,
        "sessions": [session_row(session, now) for session in run.fleet.sessions.running],
        "step_s": None if run.fleet.examined is None else rounded(run.fleet.examined.step_s),
        "findings": len(found),
        "finding": {name: getattr(found[0], name) for name in _OF_FINDING} if found else None,
    }


def node_rows(run: Run) -> list[dict[str, Any]]:
    """Return the state of each node; of its GPUs, those of the job."""
    return [_node_row(node, run.now()) for node in run.fleet.nodes.values()]


def session_rows(run: Run) -> list[dict[str, Any]]:
    """Return the sessions of the recording, in the order of their start."""
    now = run.now()
    return [session_row(session, now) for session in run.fleet.sessions.sessions.values()]


def _node_row(node: NodeState, now: float) -> dict[str, Any]:
    own, known = node.own(node.gpus), node.round_trip_s is not None
    return {
        "node": node.name,
        "state": node.standing(now).value,
        "reason": node.reason or None,
        "remedy": node.remedy or None,
        "gpus": node.gpu_count,
        "mean_util_pct": rounded(measured(own[:, UTIL], lambda values: values.mean())),
        "power_w": rounded(measured(own[:, POWER], sum)),
        "mem_used_mib": rounded(measured(node.gpus[node.memory_rows, MEMORY], sum)),
        "mem_total_mib": rounded(node.own_memory_mib),
        "age_s": rounded(node.age(now)),
        "late_ms": rounded(node.late_ms),
        "lost_frames": node.lost_frames,
        "reconnects": node.reconnects,
        "clock_offset_ms": rounded(node.offset_s * 1000) if known else None,
        "round_trip_ms": rounded((node.round_trip_s or 0.0) * 1000) if known else None,
    }
