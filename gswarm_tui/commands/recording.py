"""``gswarm-tui recording stop``: end the recording of a running gswarm-tui."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from gswarm_tui.commands.head_choice import choose_head, head_parser, print_reply
from gswarm_tui.control.intents import RecorderError, StopRecording

WAIT_S = 90.0
"""Longest wait for the end: agents may take 15 s to end, then the file is sorted and closed."""


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """End a recording and wait until its file is closed. Raises UserError."""
    parser = head_parser(
        "recording",
        "stop [options]",
        "End the recording of a running gswarm-tui as quitting does, with its sessions, and wait until the "
        "file is closed. A command that gswarm-tui record runs continues.",
    )
    parser.add_argument("action", choices=("stop",), metavar="stop", help="what to do")
    arguments = parser.read(args)
    head = choose_head(arguments, environ)
    if head.path is None:
        raise RecorderError("no recording ended: nothing is recorded; start gswarm-tui without --no-record.")
    head.carry_out(StopRecording())
    deadline = time.monotonic() + WAIT_S
    while not head.has_ended():
        if time.monotonic() > deadline:
            raise RecorderError(
                f"{head.path} is still being closed by process {head.pid} after {WAIT_S:.0f} s."
            )
        time.sleep(0.1)
    print_reply(arguments, {"path": str(head.path), "uid": head.uid}, f"ended {head.path}")
    return 0
