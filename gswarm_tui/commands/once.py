"""``gswarm-tui once``: print the fleet's present state in plain lines, without a screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gswarm_tui.common.errors import print_notice, printable
from gswarm_tui.common.quantities import plural
from gswarm_tui.options.arguments import parse_once


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print the fleet and return the exit status: 1 if a node sent no data. Raises UserError."""
    options, limit_s = parse_once(args, environ)
    from gswarm_tui.run import event_loop, log_file
    from gswarm_tui.run.once import look
    from gswarm_tui.run.plan import resolve_nodes
    from gswarm_tui.slurm import hosts
    from gswarm_tui.slurm.jobs import Slurm

    plan = resolve_nodes(options, environ, Slurm())
    log = log_file.begin()
    seen = event_loop.run(look(options, plan, limit_s))
    for sentence in seen.sentences:
        print(printable(sentence))
    if seen.silent:
        print_notice(f"no data from {plural(len(seen.silent), 'node')}: {hosts.fold(seen.silent)}.")
    if seen.problem:
        print_notice(f"{seen.problem} (log: {log})")
    return 1 if seen.silent or seen.problem else 0
