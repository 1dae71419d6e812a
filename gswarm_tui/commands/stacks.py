"""``gswarm-tui stacks``: print the stacks of the job's ranks, grouped, through a running gswarm-tui."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gswarm_tui.commands.head_choice import choose_head, head_parser
from gswarm_tui.commands.who import ask
from gswarm_tui.common.errors import print_notice, printable
from gswarm_tui.common.time_input import TimeInputError
from gswarm_tui.common.trace_input import parse_rank_list
from gswarm_tui.control.intents import RecorderError
from gswarm_tui.options.arguments import UsageError
from gswarm_tui.printing.json_output import print_json


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print each group; return 0 if all ranks have a stack. Raises UserError."""
    text = "Print the stacks of the job's ranks, grouped, the odd ones first."
    parser = head_parser("stacks", "[--ranks LIST] [options]", text)
    parser.add_argument(
        "--ranks", metavar="LIST", default="", help="print groups with these ranks: 0-7,16 (default: all)"
    )
    arguments = parser.read(args)
    try:
        ranks = set(parse_rank_list(arguments.ranks))
    except TimeInputError as error:
        raise UsageError(f"{error}.") from None
    state = ask(choose_head(arguments, environ), ["stacks"])
    table = [row for step in state["steps"] for row in step["table"]]
    if not table:
        raise RecorderError(state["sentence"])
    table = [row for row in table if not ranks or ranks & {one["rank"] for one in row["ranks"]}]
    groups, missing = [row for row in table if not row["why"]], [row for row in table if row["why"]]
    if arguments.json:
        print_json({"saw": state["sentence"], "groups": groups, "missing": missing})
    else:
        for row in groups:
            print(printable(row["name"]))
            for frame in row["frames"] or ["no Python code"]:
                print(printable(f"    {frame}"))
    for row in missing:
        print_notice(f"no stack of {row['name']}: {row['why']}")
    if absent := sorted(ranks - {one["rank"] for row in table for one in row["ranks"]}):
        print_notice(f"no stack of rank {', '.join(map(str, absent[:8]))}: no process of yours has that rank")
    return 1 if missing or absent or not groups else 0
