"""Examines nodes for ``gswarm-tui doctor``: connects, runs the agent's checks, and takes samples."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gswarm_agent.frame import gpu_label
from gswarm_tui.doctor.report import NodeReport
from gswarm_tui.options.arguments import Options
from gswarm_tui.run import build
from gswarm_tui.run.once import look
from gswarm_tui.run.plan import Plan
from gswarm_tui.run.signals import call_at_signals

if TYPE_CHECKING:
    from gswarm_tui.launch.base import Launcher

_HELLO_FIELDS = ("kernel", "cpu_model", "cpus", "memory_total_mib", "driver_version", "cuda_version")


async def examine(options: Options, plan: Plan, limit_s: float) -> list[NodeReport] | None:
    """Return a report for each node, within ``limit_s`` for each of two steps; None after a signal."""
    launcher = build.build_launcher(options, plan, "")
    checks = [asyncio.create_task(_check(launcher, node, limit_s)) for node in plan.nodes]

    def stop() -> None:
        for check in checks:
            # A second Ctrl-C doesn't cancel a check again: that would interrupt how it ends its own process.
            if not check.cancelling():
                check.cancel()

    call_at_signals(stop)
    try:
        checked = await asyncio.gather(*checks)
    except asyncio.CancelledError:
        return None
    finally:
        await asyncio.gather(*checks, return_exceptions=True)  # each ends its own process
        await launcher.close()
    reached = tuple(report.node for report in checked if report.ready)
    if not reached:
        return list(checked)
    from gswarm_tui.fleet.snapshot import node_objects

    found, _, _ = await look(options, dataclasses.replace(plan, nodes=reached), limit_s, node_objects)
    if found is None:
        return None
    seen = {node["node"]: node for node in found}
    return [_sampled(report, seen[report.node]) if report.node in seen else report for report in checked]


async def _check(launcher: Launcher, node: str, limit_s: float) -> NodeReport:
    from gswarm_tui.launch.agent_status import query_check
    from gswarm_tui.launch.base import LaunchError, LaunchStep

    began = time.monotonic()
    try:
        async with asyncio.timeout(limit_s):
            found = await query_check(launcher, node)
    except TimeoutError:
        return NodeReport(
            node, LaunchStep.AGENT.value, f"no answer within {limit_s:.0f} s", "wait longer with --timeout"
        )
    except LaunchError as error:
        return NodeReport(node, error.step.value, error.reason, error.remedy)
    return NodeReport(node, answered_s=round(time.monotonic() - began, 3), **found)


def _sampled(report: NodeReport, seen: Mapping[str, Any]) -> NodeReport:
    """Return the report of a node that was reached, with what its samples showed."""
    failed = seen["state"] not in ("live", "stale")
    return dataclasses.replace(
        report,
        failed_step="measure" if failed else "",
        reason=seen["reason"] or ("it sent no sample" if failed else ""),
        remedy=seen["remedy"] or "",
        **{name: seen[name] for name in _HELLO_FIELDS},
        gpus=tuple(gpu["name"] for gpu in seen["gpus"] if gpu["parent_index"] is None),
        unmeasured=seen["unmeasured"],
        health={gpu_label(gpu["gpu_index"]): gpu["health"] for gpu in seen["gpus"]},
        clock_offset_ms=seen["clock_offset_ms"],
        round_trip_ms=seen["round_trip_ms"],
    )
