"""``gswarm-tui mark``: a name and values for this moment, from anywhere in the job."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping, Sequence

from gswarm_agent.mark import MarkError, send, values_of
from gswarm_tui.arguments import CommandParser
from gswarm_tui.errors import UserError


def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Set a mark in the recordings that this machine takes part in; the exit status.

    Raises:
        UserError: its name or values can't be used, or nothing records here.
    """
    parser = CommandParser(
        "mark",
        "NAME [--value KEY=VALUE ...] [--recording ID]",
        "Mark this moment in every recording of yours that watches this machine or runs on it.",
    )
    parser.add_argument("name", metavar="NAME", help='what happens now, such as "epoch 3"')
    parser.add_argument(
        "--value",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a number or a text to keep with it: loss=1.2",
    )
    parser.add_argument("--recording", default="", metavar="ID", help="only in the recording with this id")
    asked = parser.read(words)
    try:
        marked = send(asked.name, values_of(asked.value, environ), asked.recording)
    except MarkError as error:
        raise UserError(f"{error}.") from None
    for problem in marked.problems:
        print(f"gswarm-tui: {problem}.", file=sys.stderr)
    if not marked.recordings and not marked.problems:
        raise UserError(_nobody(asked.recording))
    if count := len(marked.recordings):
        print(f"marked in {count} recording{'' if count == 1 else 's'}")
    return 1 if marked.problems else 0


def _nobody(recording: str) -> str:
    which = f"the recording {recording} doesn't watch" if recording else "no recording of yours watches"
    return (
        f"{which} {socket.gethostname()}; run this on a node that gswarm-tui watches, "
        "or on the machine where it runs."
    )
