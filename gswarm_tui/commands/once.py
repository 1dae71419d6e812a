"""``gswarm-tui once``: print the fleet's present state as text or data, without a screen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gswarm_agent import __version__
from gswarm_tui.common.errors import print_notice, printable
from gswarm_tui.common.quantities import plural
from gswarm_tui.options.arguments import parse_once

if TYPE_CHECKING:
    from gswarm_tui.fleet.state import Fleet

INTERRUPTED = 130


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print the fleet and return the exit status: 1 if a node sent no data. Raises UserError."""
    options, chosen = parse_once(args, environ)
    from gswarm_tui.fleet.plain_text import fleet_sentences
    from gswarm_tui.fleet.snapshot import node_objects
    from gswarm_tui.printing.json_output import print_json, with_times
    from gswarm_tui.run import log_file
    from gswarm_tui.run.once import look
    from gswarm_tui.run.plan import resolve_nodes
    from gswarm_tui.slurm import hosts

    plan = resolve_nodes(options, environ)
    log = log_file.begin()
    describe: Callable[[Fleet, float], Sequence[Any]] = (
        node_objects if chosen.json or chosen.csv else fleet_sentences
    )
    seen, silent, problem = asyncio.run(look(options, plan, chosen.timeout, describe))
    if seen is None:
        return INTERRUPTED
    if chosen.json:
        nodes = [with_times(node) for node in seen]
        print_json({"gswarm_tui": __version__, "job": plan.label or None, "nodes": nodes})
    elif chosen.csv:
        _print_csv(seen)
    else:
        print(*map(printable, seen), sep="\n")
    if silent:
        print_notice(f"no data from {plural(len(silent), 'node')}: {hosts.fold(silent)}.")
    if problem:
        print_notice(f"{problem} (log: {log})")
    return 1 if silent or problem else 0


def _print_csv(nodes: Sequence[dict[str, Any]]) -> None:
    from gswarm_tui.fleet.snapshot import GPU_ROW, gpu_rows
    from gswarm_tui.printing import formats
    from gswarm_tui.store.querying.results import Result

    result = Result(tuple(GPU_ROW), tuple(GPU_ROW.values()), iter([gpu_rows(nodes)]))
    formats.write(result, formats.OutputOptions("csv"))
