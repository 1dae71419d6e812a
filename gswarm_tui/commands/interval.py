"""``gswarm-tui interval``: show and change the sampling interval of a running gswarm-tui."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gswarm_tui.commands.head_choice import choose_head, head_parser, print_reply
from gswarm_tui.common.time_input import INTERVAL_HINT, parse_interval_ms
from gswarm_tui.control.intents import ChangeInterval
from gswarm_tui.options import values


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Change the interval, or print it. Raises UserError."""
    parser = head_parser(
        "interval",
        "[TIME] [options]",
        "Change the time between samples of a running gswarm-tui on all nodes, or print it.",
    )
    time, text = values.argument(parse_interval_ms), f"new interval: {INTERVAL_HINT}"
    parser.add_argument("interval", nargs="?", type=time, metavar="TIME", help=text)
    arguments = parser.read(args)
    head = choose_head(arguments, environ)
    interval_ms = head.status.get("interval_ms", 0)
    if arguments.interval is not None:
        interval_ms = head.carry_out(ChangeInterval(arguments.interval))["interval_ms"]
    print_reply(arguments, {"interval_ms": interval_ms}, f"sampling every {interval_ms / 1000:g} s")
    return 0
