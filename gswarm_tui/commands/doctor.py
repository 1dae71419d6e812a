"""``gswarm-tui doctor``: check this machine and the nodes, and print what to fix."""

from __future__ import annotations

import dataclasses
import json
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gswarm_tui.commands.output_files import check_output_file
from gswarm_tui.common.errors import UserError, print_notice, printable
from gswarm_tui.common.quantities import file_size
from gswarm_tui.doctor import text
from gswarm_tui.doctor.report import DoctorReport
from gswarm_tui.options.arguments import Options, parse_doctor

INTERRUPTED = 130
SUFFIX = ".tar.gz"


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print the report and return the exit status: 1 if something needs fixing. Raises UserError."""
    options, chosen = parse_doctor(args, environ)
    if chosen.bundle is not None and not chosen.bundle.name.endswith(SUFFIX):
        raise UserError(f"--bundle: name a {SUFFIX} file, such as doctor{SUFFIX}.")
    check_output_file(chosen.bundle, force=chosen.force, option="--bundle")
    from gswarm_tui.run import log_file

    log = log_file.begin()
    report = _examine(options, environ, chosen.timeout_s, counters_only=chosen.counters)
    if report is None:
        return INTERRUPTED
    if chosen.json:
        print(json.dumps(report.as_json(), indent=2, ensure_ascii=sys.stdout.isatty(), allow_nan=False))
    else:
        _print(report, counters_only=chosen.counters)
    if chosen.bundle is not None:
        _write(chosen.bundle, report, options, log)
    if chosen.counters:
        return 0 if report.nodes and all(node.may_count for node in report.nodes) else 1
    return 1 if report.to_fix else 0


def _examine(
    options: Options, environ: Mapping[str, str], limit_s: float, *, counters_only: bool
) -> DoctorReport | None:
    from gswarm_tui.doctor.findings import findings
    from gswarm_tui.doctor.local import check_here
    from gswarm_tui.run import event_loop
    from gswarm_tui.run.doctor import examine, slurms_view
    from gswarm_tui.run.plan import NoNodesError, resolve_nodes
    from gswarm_tui.slurm.jobs import Slurm

    slurm = Slurm()
    try:
        plan = resolve_nodes(options, environ, slurm)
    except NoNodesError as error:
        here = check_here(environ, 0, Path())
        here = dataclasses.replace(here, notes=(*here.notes, f"only this machine was checked: {error}"))
        return DoctorReport("", here, (), findings(here, ()))
    here = check_here(environ, len(plan.nodes), Path())
    nodes = event_loop.run(examine(options, plan, limit_s, counters_only=counters_only))
    if nodes is None:
        return None
    if "scontrol" in here.slurm_commands:
        by_slurm, problem = slurms_view(plan.nodes, slurm)
        nodes = [dataclasses.replace(node, slurm=by_slurm.get(node.node)) for node in nodes]
        if problem:
            here = dataclasses.replace(here, notes=(*here.notes, f"Slurm's view is unknown: {problem}"))
    if counters_only and plan.counters_refusal:
        here = dataclasses.replace(here, notes=(*here.notes, f"not measured: {plan.counters_refusal}."))
    return DoctorReport(plan.label, here, tuple(nodes), findings(here, nodes))


def _print(report: DoctorReport, *, counters_only: bool) -> None:
    from gswarm_tui.printing.table import show

    heads: Sequence[str] = text.HEADS
    row, verdict = text.node_row, report.verdict
    if counters_only:
        heads, row, verdict = text.COUNTER_HEADS, text.counter_row, report.counters_verdict
    else:
        for line in text.here_lines(report.here):
            print(printable(line))
        print()
    if report.nodes:
        show(heads, map(row, report.nodes), sys.stdout)
        print()
    for line in (*text.finding_lines(report), verdict):
        print(printable(line))


def _write(file: Path, report: DoctorReport, options: Options, log: Path) -> None:
    from gswarm_tui.doctor.bundle import Placeholders, write_bundle
    from gswarm_tui.printing.formats import atomic_file
    from gswarm_tui.run import build

    jumps = [jump.rpartition("@")[2].partition(":")[0] for jump in (options.jump or "").split(",")]
    # Folders and files that texts name, as their names may hold spaces.
    paths = {str(path) for path in (Path.home(), Path.cwd(), log.parent, options.ssh_config) if path} - {"/"}
    if options.hostfile is not None:
        paths |= {str(options.hostfile), options.hostfile.name}
    names = Placeholders(
        [node.node for node in report.nodes],
        [socket.gethostname(), socket.gethostname().partition(".")[0], *jumps, *report.job_server],
        [build.user_name(), options.user or ""],
        report.other_users,
        paths,
    )
    with atomic_file(file) as part:
        parts = write_bundle(part, report.as_json(), log, names)
    print_notice(
        f"wrote {file} ({file_size(file.stat().st_size)}): {' and '.join(parts)}, with names replaced; "
        "look through them before you send them."
    )
