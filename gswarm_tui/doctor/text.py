"""The report as text: this machine, a table of nodes, what to fix, notes, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator

from gswarm_tui.common.quantities import DASH, mebibytes
from gswarm_tui.doctor.findings import subject
from gswarm_tui.doctor.report import DoctorReport, LocalReport, NodeReport

HEADS: tuple[str, ...] = (
    "node",
    "connection",
    "Python",
    "GPUs",
    "driver",
    "CUDA",
    "clock",
    "spool free",
    "Slurm",
)

COUNTER_HEADS = (
    "node",
    "lock",
    "paranoid",
    "privileges",
    "CPU counters",
    "GPU counters",
    "tools",
    "in use by",
)


def here_lines(here: LocalReport) -> Iterator[str]:
    """Return lines about this machine."""
    yield f"here: Python {here.python_version}, DuckDB {here.duckdb_version}, Textual {here.textual_version}"
    yield f"  terminal {here.terminal}, {here.encoding}"
    free = f", {mebibytes(here.folder_free_mib)} free in this folder" if here.folder_free_mib else ""
    yield f"  state folder {here.state_folder}{free}"
    yield f"  Slurm commands: {', '.join(here.slurm_commands) or 'none'}"


def counter_row(node: NodeReport) -> list[str]:
    """Return a row of text about a node's hardware counters, in the columns ``COUNTER_HEADS``."""
    if not node.cpu_counters:
        return [node.node, *[DASH] * (len(COUNTER_HEADS) - 1)]
    paranoid, admin_only = node.perf_event_paranoid, node.gpu_counters_admin_only
    return [
        node.node,
        node.likwid_lock_owner or "none",
        DASH if paranoid is None else str(paranoid),
        " ".join(node.counter_privileges) or "none",
        "open" if node.may_count else "closed",
        DASH if admin_only is None else "administrators" if admin_only else "open",
        ", ".join(node.counter_tools) or "none",
        node.counters_in_use_by or DASH,
    ]


def finding_lines(report: DoctorReport) -> Iterator[str]:
    """Return what to fix, then the notes, each under a heading."""
    for heading, fix in (("To fix:", True), ("Notes:", False)):
        if chosen := [finding for finding in report.findings if finding.fix is fix]:
            yield heading
            yield from (f"  {subject(finding)}: {finding.text}" for finding in chosen)


def node_row(node: NodeReport) -> list[str]:
    """Return a row of text about a node, in the columns ``HEADS``."""
    connection = "ok" if node.ready else f"failed to {node.failed_step}"
    if node.ready and node.answered_s is not None:
        connection = f"ok, {node.answered_s:.1f} s"
    gpus = " + ".join(f"{node.gpus.count(name)} × {name}" for name in dict.fromkeys(node.gpus))
    clock = DASH if node.clock_offset_ms is None else f"{node.clock_offset_ms:+.0f} ms"
    slurm = DASH
    if node.slurm is not None:
        slurm = node.slurm.state
        if node.slurm.gpus is not None:
            slurm += f", {node.slurm.gpus_allocated or 0} of {node.slurm.gpus} GPUs in use"
    return [
        node.node,
        connection,
        node.python_version or DASH,
        gpus or DASH,
        node.driver_version or DASH,
        node.cuda_version or DASH,
        clock,
        DASH if node.spool_free_mib is None else mebibytes(node.spool_free_mib),
        slurm,
    ]
