"""``gswarm-tui metrics``: show and switch the groups of metrics that a running gswarm-tui measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gswarm_agent.metrics import METRIC_GROUPS
from gswarm_tui.common.errors import UserError, quote
from gswarm_tui.control.client import Head, RequestError, running_heads, switch_metrics
from gswarm_tui.options import values
from gswarm_tui.options.arguments import CommandParser


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Switch groups or print their states, and return the exit status.

    Raises:
        UserError: a group is unknown, or it isn't clear which running gswarm-tui is meant.
    """
    parser = CommandParser(
        "metrics",
        "[GROUPS] [--db PATH]",
        "Switch the groups of metrics that a running gswarm-tui measures: GROUPS such as core,pcie are on "
        "from now on, all others off. Without GROUPS, list all groups.",
        usual="that of the only running one",
    )
    parser.add_argument("groups", nargs="?", metavar="GROUPS", help="groups to measure: core,pcie")
    arguments = parser.read(args)
    try:
        wanted = None if arguments.groups is None else values.metric_groups(arguments.groups)
        head = _head(environ, arguments.db)
        if wanted is not None:
            switch_metrics(head, wanted)
    except (ValueError, RequestError) as error:
        raise UserError(f"{error}.") from None
    for name, measures in METRIC_GROUPS.items():
        print(f"{'on ' if name in (wanted or head.metrics) else 'off'}  {name:10} {measures}")
    return 0


def _head(environ: Mapping[str, str], db: Path | None) -> Head:
    """Return the running head that records into a file, without one the only head. Raises UserError."""
    found = [one for one in running_heads(environ) if db is None or one.records(db)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(f"{len(found)} gswarm-tui are running; choose one by its recording with --db PATH.")
    which = "" if db is None else f" that records into {quote(str(db))}"
    raise UserError(f"no gswarm-tui of yours{which} is running on this machine.")
