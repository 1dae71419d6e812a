"""``gswarm-tui once``: print the fleet's present state as lines, JSON or CSV, without a screen."""

from __future__ import annotations

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
    from gswarm_tui.run import event_loop, log_file
    from gswarm_tui.run.once import look
    from gswarm_tui.run.plan import resolve_nodes
    from gswarm_tui.slurm import hosts
    from gswarm_tui.slurm.jobs import Slurm

    plan = resolve_nodes(options, environ, Slurm())
    log = log_file.begin()
    describe, write = _FORMATS[chosen.format]
    seen = event_loop.run(look(options, plan, chosen.timeout_s, describe))
    if seen.seen is None:
        return INTERRUPTED
    write(seen.seen, plan.label)
    if seen.silent:
        print_notice(f"no data from {plural(len(seen.silent), 'node')}: {hosts.fold(seen.silent)}.")
    if seen.problem:
        print_notice(f"{seen.problem} (log: {log})")
    return 1 if seen.silent or seen.problem else 0


def _sentences(fleet: Fleet, now: float) -> list[str]:
    from gswarm_tui.fleet.plain_text import fleet_sentences

    return fleet_sentences(fleet, now)


def _print_sentences(sentences: Sequence[str], _job: str) -> None:
    for sentence in sentences:
        print(printable(sentence))


def _nodes(fleet: Fleet, now: float) -> list[dict[str, Any]]:
    from gswarm_tui.fleet.snapshot import node_objects

    return node_objects(fleet, now)


def _print_json(nodes: Sequence[dict[str, Any]], job: str) -> None:
    from gswarm_tui.printing.json_output import print_json, with_times

    print_json({"gswarm_tui": __version__, "job": job or None, "nodes": [with_times(node) for node in nodes]})


def _print_csv(nodes: Sequence[dict[str, Any]], _job: str) -> None:
    from gswarm_tui.fleet.snapshot import GPU_ROW, gpu_rows
    from gswarm_tui.printing import formats
    from gswarm_tui.store.querying.results import Result

    result = Result(tuple(GPU_ROW), tuple(GPU_ROW.values()), iter([gpu_rows(nodes)]))
    formats.write(result, formats.OutputOptions("csv"))


_FORMATS: dict[str, tuple[Callable[[Fleet, float], Any], Callable[[Any, str], None]]] = {
    "text": (_sentences, _print_sentences),
    "json": (_nodes, _print_json),
    "csv": (_nodes, _print_csv),
}
"""For each format, a function that describes the fleet and one that prints the description."""
