"""``gswarm-tui recording stop``: end the recording of a running gswarm-tui."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from gswarm_tui.commands.head_choice import USUAL, add_head_options, choose_head
from gswarm_tui.common.errors import printable
from gswarm_tui.control.client import Head
from gswarm_tui.control.intents import RecorderError, StopRecording
from gswarm_tui.options.arguments import CommandParser, UsageError
from gswarm_tui.printing.json_output import print_json

WAIT_S = 90.0
"""Longest wait for the end: agents may take 15 s to end, then the file is sorted and closed."""
_STOP = "[--recording RECORDING] [--db PATH] [--json]"
_DESCRIPTION = (
    "End the recording of a running gswarm-tui as quitting does, with its sessions, and wait until the file "
    "is closed. A command that gswarm-tui record runs continues."
)


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """End a recording and wait until its file is closed. Raises UserError."""
    if args and args[0] == "stop":
        return _stop(args[1:], environ)
    parser = CommandParser("recording", f"stop {_STOP}", _DESCRIPTION, database=False)
    parser.add_argument("action", nargs="?", metavar="stop", help="has its own --help")
    parser.parse_known_args(args)  # prints the help for --help
    raise UsageError("write gswarm-tui recording stop; see --help.")


def _stop(args: Sequence[str], environ: Mapping[str, str]) -> int:
    parser = CommandParser("recording stop", _STOP, _DESCRIPTION, usual=USUAL)
    add_head_options(parser)
    arguments = parser.read(args)
    head = choose_head(arguments, environ)
    if head.path is None:
        raise RecorderError("no recording ended: nothing is recorded; start gswarm-tui without --no-record.")
    head.carry_out(StopRecording())
    _wait(head)
    if arguments.json:
        print_json({"path": str(head.path), "uid": head.uid})
    else:
        print(f"ended {printable(str(head.path))}")
    return 0


def _wait(head: Head) -> None:
    """Wait until a head has closed its recording. Raises RecorderError if that takes too long."""
    deadline = time.monotonic() + WAIT_S
    while not head.has_ended():
        if time.monotonic() > deadline:
            raise RecorderError(
                f"{head.path} is still being closed by process {head.pid} after {WAIT_S:.0f} s."
            )
        time.sleep(0.1)
