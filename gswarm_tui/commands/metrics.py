"""``gswarm-tui metrics``: show and switch the groups of metrics that a running gswarm-tui measures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from gswarm_agent.metrics import ALL_GROUPS, METRIC_GROUPS
from gswarm_tui.common.errors import UserError, quote
from gswarm_tui.control.client import Head, RequestError, carry_out, running_heads
from gswarm_tui.control.intents import SetMetrics
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
        "from now on, all others off; +pcie switches one group on and +pcie,-host several. Without GROUPS, "
        "list all groups.",
        usual="that of the only running one",
    )
    parser.add_argument("groups", nargs="?", metavar="GROUPS", help="groups, as core,pcie or +pcie,-host")
    # argparse would take -host for an option.
    changed = [word for word in args if re.fullmatch(r"[+-][a-z]\w+(,[+-][a-z]\w+)*", word)]
    arguments = parser.read([word for word in args if word not in changed])
    if changed and (arguments.groups is not None or len(changed) > 1):
        raise UserError("name all groups to switch in one word: +pcie,-host.")
    try:
        wanted = None if arguments.groups is None else values.metric_groups(arguments.groups)
        if changed:
            on, off = _switched(changed[0])
        head = _head(environ, arguments.db)
        if changed:
            wanted = tuple(name for name in ALL_GROUPS if name in {*head.metrics, *on} - {*off})
        if wanted is not None:
            carry_out(head, SetMetrics(wanted))
    except (ValueError, RequestError) as error:
        raise UserError(f"{error}.") from None
    for name, measures in METRIC_GROUPS.items():
        print(f"{'on ' if name in (wanted or head.metrics) else 'off'}  {name:10} {measures}")
    return 0


def _switched(word: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the groups that a word such as +pcie,-host switches on and off. Raises ValueError."""
    signed = word.split(",")
    on = [name[1:] for name in signed if name.startswith("+")]
    off = [name[1:] for name in signed if name.startswith("-")]
    values.metric_groups([*on, *off])
    if "core" in off:
        raise ValueError("the group core is always on")
    return tuple(on), tuple(off)


def _head(environ: Mapping[str, str], db: Path | None) -> Head:
    """Return the running head that records into a file, without one the only head. Raises UserError."""
    found = [one for one in running_heads(environ) if db is None or one.records(db)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(f"{len(found)} gswarm-tui are running; choose one by its recording with --db PATH.")
    which = "" if db is None else f" that records into {quote(str(db))}"
    raise UserError(f"no gswarm-tui of yours{which} is running on this machine.")
