"""``gswarm-tui who``: ask the job which rank is behind, through a running gswarm-tui."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from gswarm_tui.commands.head_choice import choose_head, head_parser
from gswarm_tui.common.errors import print_notice, printable
from gswarm_tui.control.client import Head
from gswarm_tui.control.intents import AskJob, RecorderError
from gswarm_tui.printing.json_output import print_json
from gswarm_tui.printing.progress import Progress

POLL_S = 0.2
STEPS = ("processes", "ras", "flight_recorder", "stacks", "trace")


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Ask, and print the answer; return 0 if it names ranks or all of them moved. Raises UserError."""
    parser = head_parser(
        "who", "[--step STEP] [--force] [options]", "Ask the job which rank is behind, step by step."
    )
    add = parser.add_argument
    add("--step", action="append", default=[], choices=STEPS, help="ask by this step only (repeatable)")
    add("--force", action="store_true", help="ask NCCL before 2.29.2, too, which could corrupt the job")
    arguments = parser.read(args)
    state = ask(choose_head(arguments, environ), arguments.step, force=arguments.force)
    if arguments.json:
        print_json({name: value for name, value in state.items() if name not in ("token", "running")})
    else:
        print(printable(state["sentence"]))
        for step in state["steps"]:
            for line in step["lines"]:
                print(printable(f"  {line}"))
    return 0 if state["decided_by"] else 1


def ask(head: Head, steps: Sequence[str], *, force: bool = False) -> dict[str, Any]:
    """Print what each step does to the job, ask, and return the state at the end. Raises RecorderError."""
    ladder = [
        one for one in head.request({"want": "asked"}).get("steps", ()) if one["step"] in (steps or STEPS)
    ]
    if ladder:
        costs = [f"  {one['title']}: {one['cost']}" for one in ladder]
        print_notice(f"asking the job{' until a step can tell' * (len(ladder) > 1)}:", *costs)
    state = head.carry_out(AskJob(tuple(steps), force))
    token = state["token"]
    with Progress("finding the ranks", after_s=0) as progress:
        while state["running"]:
            for step in state["steps"]:
                if step["state"] == "asking":
                    progress.describe(f"asking by {step['title']}")
            time.sleep(POLL_S)
            state = head.request({"want": "asked"})
            if state.get("token") != token:
                raise RecorderError("the job was asked again meanwhile; gswarm-tui sql shows the events")
    return state
