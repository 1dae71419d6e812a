"""``gswarm-tui mark``: a name and values for this moment, from anywhere in the job.

It is set in training loops: nothing slow is imported, such as the database.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gswarm_agent.mark import Marked, MarkError, Value, checked, send, values_of
from gswarm_tui.common.errors import UserError, quote
from gswarm_tui.control.client import Head, running_heads, send_mark
from gswarm_tui.options.arguments import CommandParser


def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Set a mark in the recordings that this machine takes part in; the exit status.

    Raises:
        UserError: its name or values can't be used, or nothing records here.
    """
    parser = CommandParser(
        "mark",
        "NAME [--value KEY=VALUE ...] [--recording ID] [--db PATH]",
        "Mark this moment in every recording of yours that watches this machine or runs on it.",
        usual="all of them",
    )
    parser.add_argument("name", metavar="NAME", help='what happens now, such as "epoch 3"')
    parser.add_argument(
        "--value",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a number or a text to keep with it: loss=1.2",
    )
    parser.add_argument("--recording", default="", metavar="ID", help="only the recording whose id begins so")
    asked = parser.read(words)
    meant = _heads(environ, asked.recording, asked.db)
    try:
        values = values_of(asked.value, environ)
        checked(asked.name, values)
        marked = _mark(asked.name, values, asked.recording if asked.db is None else meant[0].uid, meant)
    except MarkError as error:
        raise UserError(f"{error}.") from None
    for problem in marked.problems:
        print(f"gswarm-tui: {problem}.", file=sys.stderr)
    if not marked.recordings and not marked.problems:
        raise UserError(_nobody(asked.recording))
    if count := len(marked.recordings):
        print(f"marked in {count} recording{'' if count == 1 else 's'}")
    return 1 if marked.problems else 0


def _heads(environ: Mapping[str, str], recording: str, db: Path | None) -> list[Head]:
    """The running heads here whose recordings are meant. Raises UserError where there is none for ``db``."""
    found = [one for one in running_heads(environ) if one.path is not None and one.uid.startswith(recording)]
    if db is None:
        return found
    if chosen := [one for one in found if one.records(db)]:
        return chosen
    raise UserError(
        f"no gswarm-tui that runs here records into {quote(str(db))}; on a node, name the recording by "
        "--recording and its id."
    )


def _mark(name: str, values: Mapping[str, Value], recording: str, meant: Sequence[Head]) -> Marked:
    """In the recordings of agents here, and in those of heads here that have no agent here.

    Raises MarkError.
    """
    marked = send(name, values, recording)
    for head in meant:
        if head.uid in marked.recordings:
            continue
        try:
            send_mark(head, name, values)
        except MarkError as error:
            marked.problems.append(str(error))
        else:
            marked.recordings.append(head.uid)
    return marked


def _nobody(recording: str) -> str:
    which = (
        f"the recording {quote(recording)} doesn't watch" if recording else "no recording of yours watches"
    )
    return (
        f"{which} {socket.gethostname()}; run this on a node that gswarm-tui watches, "
        "or on the machine where it runs."
    )
