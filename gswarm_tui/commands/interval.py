"""``gswarm-tui interval``: show and change the sampling interval of a running gswarm-tui."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gswarm_tui.commands.head_choice import USUAL, add_head_options, choose_head
from gswarm_tui.common.time_input import INTERVAL_HINT, TimeInputError, parse_interval_ms
from gswarm_tui.control.intents import ChangeInterval
from gswarm_tui.options.arguments import CommandParser, UsageError
from gswarm_tui.printing.json_output import print_json


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Change the interval, or print it. Raises UserError."""
    parser = CommandParser(
        "interval",
        "[TIME] [--recording RECORDING] [--db PATH] [--json]",
        "Change the time between samples of a running gswarm-tui on all nodes, or print it.",
        usual=USUAL,
    )
    parser.add_argument("interval", nargs="?", metavar="TIME", help=f"new interval: {INTERVAL_HINT}")
    add_head_options(parser)
    arguments = parser.read(args)
    try:
        wanted = None if arguments.interval is None else parse_interval_ms(arguments.interval)
    except TimeInputError as error:
        raise UsageError(f"{error}.") from None
    head = choose_head(arguments, environ)
    interval_ms = head.status.get("interval_ms", 0)
    if wanted is not None:
        interval_ms = head.carry_out(ChangeInterval(wanted))["interval_ms"]
    if arguments.json:
        print_json({"interval_ms": interval_ms})
    else:
        print(f"sampling every {interval_ms / 1000:g} s")
    return 0
