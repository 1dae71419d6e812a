"""``gswarm-tui metrics``: show and switch the groups of metrics that a running gswarm-tui measures."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

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
    words = [word for word in args if re.match(r"[+-][a-z]\w", word)]
    arguments = parser.read([word for word in args if word not in words])
    words += [] if arguments.groups is None else [arguments.groups]
    if len(words) > 1:
        raise UsageError("name all groups to switch in one word: +pcie,-host.")
    head = choose_head(arguments, environ)
    measured = head.status["metrics"]
    if words:
        try:
            wanted = _wanted(words[0], measured)
        except ValueError as error:
            raise UsageError(f"{error}.") from None
        measured = head.carry_out(ChangeMetrics(wanted))["groups"]
    states = {name: name in measured for name in METRIC_GROUPS}
    lines = [f"{'on ' if on else 'off'}  {name:10} {METRIC_GROUPS[name]}" for name, on in states.items()]
    print_reply(arguments, states, *lines)
    return 0


def _wanted(word: str, measured: Collection[str]) -> tuple[str, ...]:
    """Return the groups that are on after a word such as core,pcie or +pcie,-host. Raises ValueError."""
    names = [name.strip() for name in word.split(",")]
    signed = [name for name in names if name.startswith(("+", "-"))]
    if not word.strip() or 0 < len(signed) < len(names):
        raise ValueError(f"{quote(word)}: write all groups that are on, as core,pcie, or +pcie,-host")
    if not signed:
        return values.metric_groups(word)
    values.metric_groups(",".join(name[1:] for name in signed))
    off = {name[1:] for name in signed if name.startswith("-")}
    if "core" in off:
        raise ValueError("the group core is always on")
    return tuple(
        name for name in ALL_GROUPS if name not in off and (name in measured or f"+{name}" in signed)
    )
