"""``gswarm-tui doctor``: check this machine and the nodes, and print what to fix."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gswarm_tui.common.errors import printable
from gswarm_tui.common.quantities import DASH, mebibytes
from gswarm_tui.doctor.checks import checks, subject
from gswarm_tui.doctor.report import DoctorReport, NodeReport
from gswarm_tui.options.arguments import parse_doctor

INTERRUPTED = 130
HEADS = ("node", "connection", "Python", "GPUs", "driver", "CUDA", "clock", "spool free")


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print the report and return the exit status: 1 if something needs fixing. Raises UserError."""
    options, chosen = parse_doctor(args, environ)
    from gswarm_tui.doctor.local import check_here
    from gswarm_tui.run import log_file
    from gswarm_tui.run.doctor import examine
    from gswarm_tui.run.plan import NoNodesError, resolve_nodes

    log_file.begin()
    here, label = check_here(environ, Path()), ""
    nodes: list[NodeReport] | None = []
    try:
        plan = resolve_nodes(options, environ)
    except NoNodesError as error:
        here = dataclasses.replace(here, notes=(*here.notes, f"only this machine was checked: {error}"))
    else:
        label, nodes = plan.label, asyncio.run(examine(options, plan, chosen.timeout))
    if nodes is None:
        return INTERRUPTED
    report = DoctorReport(label, here, tuple(nodes), checks(here, nodes))
    if chosen.json:
        from gswarm_tui.printing.json_output import print_json

        print_json(report.as_json())
    else:
        _print(report)
    return 1 if report.to_fix else 0


def _print(report: DoctorReport) -> None:
    from gswarm_tui.printing.table import show

    here = report.here
    free = f", {mebibytes(here.folder_free_mib)} free in this folder" if here.folder_free_mib else ""
    print(f"here: Python {here.python_version}, DuckDB {here.duckdb_version}, Textual {here.textual_version}")
    print(printable(f"  terminal {here.terminal}, {here.encoding}"))
    print(printable(f"  state folder {here.state_folder}{free}"))
    print(f"  Slurm commands: {', '.join(here.slurm_commands) or 'none'}", end="\n\n")
    if report.nodes:
        show(HEADS, map(_node_row, report.nodes), sys.stdout)
        print()
    for heading, fix in (("To fix:", True), ("Notes:", False)):
        if chosen := [check for check in report.checks if check.fix is fix]:
            print(heading)
            for check in chosen:
                print(printable(f"  {subject(check)}: {check.text}"))
    print(printable(report.verdict))


def _node_row(node: NodeReport) -> list[str]:
    """Return a row of text about a node, in the columns ``HEADS``."""
    connection = "ok" if node.ready else f"failed to {node.failed_step}"
    if node.ready and node.answered_s is not None:
        connection = f"ok, {node.answered_s:.1f} s"
    gpus = " + ".join(f"{node.gpus.count(name)} × {name}" for name in dict.fromkeys(node.gpus))
    clock = DASH if node.clock_offset_ms is None else f"{node.clock_offset_ms:+.0f} ms"
    return [
        node.node,
        connection,
        node.python_version or DASH,
        gpus or DASH,
        node.driver_version or DASH,
        node.cuda_version or DASH,
        clock,
        DASH if node.spool_free_mib is None else mebibytes(node.spool_free_mib),
    ]
