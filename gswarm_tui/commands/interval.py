"""``gswarm-tui interval``: show and change the sampling interval of a running gswarm-tui."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gswarm_tui.commands.head_choice import choose_head, head_parser, print_reply
from gswarm_tui.common.time_input import INTERVAL_HINT, TimeInputError, parse_interval_ms
from gswarm_tui.control.intents import ChangeInterval
from gswarm_tui.options.arguments import UsageError


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Change the interval, or print it. Raises UserError."""
    parser = head_parser(
        "interval",
        "[TIME] [options]",
        "Change the time between samples of a running gswarm-tui on all nodes, or print it.",
    )
    parser.add_argument("interval", nargs="?", metavar="TIME", help=f"new interval: {INTERVAL_HINT}")
    arguments = parser.read(args)
    try:
        wanted = None if arguments.interval is None else parse_interval_ms(arguments.interval)
    except TimeInputError as error:
        raise UsageError(f"{error}.") from None
    head = choose_head(arguments, environ)
    interval_ms = head.status.get("interval_ms", 0)
    if wanted is not None:
        interval_ms = head.carry_out(ChangeInterval(wanted))["interval_ms"]
    print_reply(arguments, {"interval_ms": interval_ms}, f"sampling every {interval_ms / 1000:g} s")
    return 0
