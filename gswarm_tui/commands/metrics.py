"""``gswarm-tui metrics``: show and switch the groups of metrics that a running gswarm-tui measures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gswarm_agent.metrics import ALL_GROUPS, METRIC_GROUPS
from gswarm_tui.commands.head_choice import choose_head, head_parser, print_reply
from gswarm_tui.common.errors import quote
from gswarm_tui.control.intents import ChangeMetrics
from gswarm_tui.options import values
from gswarm_tui.options.arguments import UsageError


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Switch groups or print their states. Raises UserError."""
    parser = head_parser(
        "metrics",
        "[GROUPS] [options]",
        "Switch the groups of metrics that a running gswarm-tui measures: GROUPS such as core,pcie are on "
        "from now on, all others off; +pcie switches one group on and +pcie,-host several. Without GROUPS, "
        "list all groups.",
    )
    parser.add_argument("groups", nargs="?", metavar="GROUPS", help="groups, as core,pcie or +pcie,-host")
    # argparse would take -host for an option.
    changed = [word for word in args if re.fullmatch(r"[+-][a-z]\w+(,[+-][a-z]\w+)*", word)]
    arguments = parser.read([word for word in args if word not in changed])
    if changed and (arguments.groups is not None or len(changed) > 1):
        raise UsageError("name all groups to switch in one word: +pcie,-host.")
    if arguments.groups is not None and re.search(r"^\s*$|(^|,)[+-]", arguments.groups):
        raise UsageError(
            f"{quote(arguments.groups)}: write all groups that are on, as core,pcie, or +pcie,-host."
        )
    try:
        wanted = None if arguments.groups is None else values.metric_groups(arguments.groups)
        on, off = _switched(changed[0]) if changed else ((), ())
    except ValueError as error:
        raise UsageError(f"{error}.") from None
    head = choose_head(arguments, environ)
    measured = head.status["metrics"]
    if changed:
        wanted = tuple(name for name in ALL_GROUPS if name in {*measured, *on} - {*off})
    if wanted is not None:
        measured = head.carry_out(ChangeMetrics(wanted))["groups"]
    states = {name: name in measured for name in METRIC_GROUPS}
    lines = [f"{'on ' if on else 'off'}  {name:10} {METRIC_GROUPS[name]}" for name, on in states.items()]
    print_reply(arguments, states, *lines)
    return 0


def _switched(word: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the groups that a word such as +pcie,-host switches on and off. Raises ValueError."""
    signed = word.split(",")
    on = [name[1:] for name in signed if name.startswith("+")]
    off = [name[1:] for name in signed if name.startswith("-")]
    values.metric_groups(",".join([*on, *off]))
    if "core" in off:
        raise ValueError("the group core is always on")
    return tuple(on), tuple(off)
