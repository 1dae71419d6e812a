"""``gswarm-tui mark``: mark this moment with a name and values, from anywhere in the job.

Training loops call it, so it imports nothing slow, such as the database.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from gswarm_agent.mark import Marked, MarkError, Value, checked, send, values_of
from gswarm_tui.common.errors import UserError, print_notice, quote
from gswarm_tui.common.quantities import plural
from gswarm_tui.control.client import Head, RequestError, carry_out, running_heads
from gswarm_tui.control.intents import SetMark
from gswarm_tui.options.arguments import CommandParser


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Set a mark in the recordings of this machine and return the exit status.

    Raises:
        UserError: the name or a value is invalid, or nothing records this machine.
    """
    parser = CommandParser(
        "mark",
        "NAME [--value KEY=VALUE ...] [--recording ID] [--db PATH]",
        "Set a mark at this moment in each of your recordings that monitors this machine or runs on it.",
        usual="all running ones",
    )
    parser.add_argument("name", metavar="NAME", help='name of the mark, such as "epoch 3"')
    parser.add_argument(
        "--value",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="number or text stored with the mark: loss=1.2",
    )
    parser.add_argument("--recording", default="", metavar="ID", help="only the recording with this ID")
    arguments = parser.read(args)
    heads = _heads(environ, arguments.recording, arguments.db)
    try:
        values = values_of(arguments.value, environ)
        checked(arguments.name, values)
        marked = _mark(
            arguments.name, values, arguments.recording if arguments.db is None else heads[0].uid, heads
        )
    except MarkError as error:
        raise UserError(f"{error}.") from None
    for problem in marked.problems:
        print_notice(f"{problem}.")
    if not marked.recordings and not marked.problems:
        raise UserError(_no_recording(arguments.recording))
    if count := len(marked.recordings):
        print(f"marked in {plural(count, 'recording')}")
    return 1 if marked.problems else 0


def _heads(environ: Mapping[str, str], recording: str, db: Path | None) -> list[Head]:
    """Return the heads on this machine that record the named recordings. Raises UserError."""
    found = [one for one in running_heads(environ) if one.path is not None and one.uid.startswith(recording)]
    if db is None:
        return found
    if chosen := [one for one in found if one.records(db)]:
        return chosen
    raise UserError(
        f"no gswarm-tui on this machine records into {quote(str(db))}; on a node, name the recording with "
        "--recording ID."
    )


def _mark(name: str, values: Mapping[str, Value], recording: str, heads: Sequence[Head]) -> Marked:
    """Mark the recordings of agents here, and of heads here without an agent here. Raises MarkError."""
    marked = send(name, values, recording)
    for head in heads:
        if head.uid in marked.recordings:
            continue
        try:
            carry_out(head, SetMark(name, values))
        except RequestError as error:
            marked.problems.append(str(error))
        else:
            marked.recordings.append(head.uid)
    return marked


def _no_recording(recording: str) -> str:
    which = f"recording {quote(recording)} doesn't monitor" if recording else "no recording of yours monitors"
    return (
        f"{which} {socket.gethostname()}; run this on a monitored node, "
        "or on the machine that runs gswarm-tui."
    )
