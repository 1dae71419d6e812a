"""``gswarm-tui trace``: trace the job's PyTorch processes through a running gswarm-tui."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from gswarm_tui.commands.head_choice import choose_head, head_parser
from gswarm_tui.common.errors import print_notice, printable
from gswarm_tui.common.quantities import file_size, plural
from gswarm_tui.common.time_input import TimeInputError
from gswarm_tui.common.trace_input import parse_rank_list, parse_traced
from gswarm_tui.control.client import Head
from gswarm_tui.control.intents import CancelTrace, IntentError, RecorderError, StartTrace
from gswarm_tui.options import values
from gswarm_tui.options.arguments import CommandParser, UsageError
from gswarm_tui.printing.json_output import print_json
from gswarm_tui.printing.progress import Progress

POLL_S = 0.5
MIB = 1024 * 1024


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Trace, and return once the files are here. Raises UserError."""
    arguments = _parser().read(args)
    try:
        intent = StartTrace(
            duration_ms=parse_traced(arguments.duration),
            ranks=parse_rank_list(arguments.ranks),
            stacks=arguments.stacks,
            max_mib=arguments.max_mib,
        )
    except (IntentError, TimeInputError) as error:
        raise UsageError(f"{error}.") from None
    head = choose_head(arguments, environ)
    if arguments.cancel:
        head.carry_out(CancelTrace())
        return 0
    state = head.carry_out(intent)
    try:
        print_notice(
            f"requested a trace; files of at most {intent.max_mib:,} MiB a rank before compression "
            f"go to {state['folder']}"
        )
        state = _wait(head, state)
    except KeyboardInterrupt:
        head.carry_out(CancelTrace())
        raise
    if arguments.json:
        print_json({"folder": state["folder"], "ranks": state["ranks"]})
    status = _print_result(state, quiet=arguments.json)
    missing = sorted(set(intent.ranks) - {rank["rank"] for rank in state["ranks"]})
    if missing or not state["ranks"]:
        which = f"rank {', '.join(map(str, missing[:8]))}{' …' if missing[8:] else ''}" if missing else "all"
        print_notice(f"not traced: {which}: no node has a process of yours with that rank")
        return 1
    return status


def _parser() -> CommandParser:
    parser = head_parser(
        "trace",
        "[--duration SECONDS] [options]",
        "Trace the PyTorch processes of a running recording at the same time, and fetch the files.",
    )
    add, number = parser.add_argument, values.whole(1, 10**6)
    add("--duration", metavar="SECONDS", default="0.5", help="trace this long (default: 0.5)")
    add("--ranks", metavar="LIST", default="", help="ranks to trace: 0-7,16 (default: all)")
    add("--stacks", action="store_true", help="with Python stacks, which slow the job down more")
    text = "largest trace of a rank that is fetched, before compression; all together 16 times that"
    add("--max-mib", type=number, metavar="MIB", default=512, help=f"{text} (default: 512)")
    add("--cancel", action="store_true", help="end the trace that is under way")
    return parser


def _wait(head: Head, state: dict[str, Any]) -> dict[str, Any]:
    """Return the state at the end. Raises RecorderError."""
    token = state["token"]
    with Progress("waiting for the ranks", after_s=0) as progress:
        while state["running"]:
            time.sleep(POLL_S)
            state = head.request({"want": "trace"})
            if state.get("token") != token:
                raise RecorderError("another trace was requested meanwhile; gswarm-tui sql shows the events.")
            progress.describe(_describe(state))
    return state


def _describe(state: Mapping[str, Any]) -> str:
    ranks = state["ranks"]
    if ranks and not state["asking"] and all(rank["state"] in ("done", "failed") for rank in ranks):
        return "importing the traces"
    size = sum(rank["size"] for rank in ranks)
    if size:
        done = sum(rank["fetched"] for rank in ranks)
        return f"fetching {plural(len(ranks), 'trace')}: {done / MIB:,.0f} of {size / MIB:,.0f} MiB"
    if (left_s := state["starts_at"] - time.time()) > 0:
        return f"{plural(len(ranks), 'rank')} found, tracing starts in {left_s:.0f} s"
    return f"waiting for the files of {plural(len(ranks), 'rank')}"


def _print_result(state: Mapping[str, Any], *, quiet: bool) -> int:
    done = [rank for rank in state["ranks"] if rank["state"] == "done"]
    failed = [rank for rank in state["ranks"] if rank["state"] == "failed"]
    if not quiet:
        for rank in done:
            print(printable(f"{state['folder']}/{rank['file']}  {file_size(rank['zipped'])}"))
    for rank in done:
        if not rank["imported"]:
            print_notice(f"{rank['file']} wasn't imported: {rank['reason']}")
    for rank in failed:
        what = f"rank {rank['rank']} on " if rank["rank"] is not None else ""
        print_notice(f"not traced: {what}{rank['node']}: {rank['reason']}")
    return 0 if done and not failed else 1
