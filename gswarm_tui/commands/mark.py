"""``gswarm-tui mark``: mark this moment with a name and values, from anywhere in the job.

Training loops call it, so it imports nothing slow, such as the database.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

from gswarm_agent.mark import Marked, MarkError, send, values_of
from gswarm_tui.commands.head_choice import head_parser, named_heads, parse_head_time, print_reply
from gswarm_tui.common.errors import print_notice, quote
from gswarm_tui.common.quantities import plural
from gswarm_tui.control.client import NoHeadError, running_heads
from gswarm_tui.control.intents import IntentError, RecorderError, SetMark
from gswarm_tui.options.arguments import UsageError


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Set a mark in the recordings of this machine; return the exit status. Raises UserError."""
    parser = head_parser(
        "mark",
        "NAME [--value KEY=VALUE ...] [options]",
        "Set a mark at this moment in each of your recordings that monitors this machine or runs on it.",
        usual="all running ones",
    )
    add = parser.add_argument
    add("name", metavar="NAME", help='name of the mark, such as "epoch 3"')
    text = "number or text stored with the mark: loss=1.2"
    add("--value", action="append", default=[], metavar="KEY=VALUE", help=text)
    add("--at", metavar="TIME", help="another time, on the machine that runs gswarm-tui: -2m, 14:05")
    arguments = parser.read(args)
    recording = [head for head in running_heads(environ) if head.path is not None]
    heads = named_heads(recording, arguments.recording, arguments.db)
    if arguments.db is not None and not heads:
        raise NoHeadError(
            f"no gswarm-tui on this machine records into {quote(str(arguments.db))}; on a node, name the "
            "recording with --recording ID."
        )
    try:
        values = values_of(arguments.value, environ)
        SetMark(arguments.name, values)
        if arguments.at is None:
            chosen = arguments.recording or arguments.db is not None
            uid = heads[0].uid if len(heads) == 1 and chosen else arguments.recording
            marked = send(arguments.name, values, uid)
        else:
            marked = Marked([], [])
    except (MarkError, IntentError) as error:
        raise UsageError(f"{error}.") from None
    # Recordings of recorders here without an agent here, which can't have passed the mark on.
    for head in heads:
        if head.uid not in marked.recordings:
            at = parse_head_time(arguments.at, head)
            try:
                head.carry_out(SetMark(arguments.name, values, at))
                marked.recordings.append(head.uid)
            except RecorderError as error:
                marked.problems.append(str(error))
    for problem in marked.problems:
        print_notice(f"{problem}.")
    if not marked.recordings and not marked.problems:
        named, host = arguments.recording, socket.gethostname()
        which = f"recording {quote(named)} doesn't monitor" if named else "no recording of yours monitors"
        remedy = "run this on a monitored node, or on the machine that runs gswarm-tui"
        if arguments.at is not None:
            which = "no recording of yours is written on"
            remedy = "--at works on the machine that runs gswarm-tui"
        raise NoHeadError(f"{which} {host}; {remedy}.")
    count = len(marked.recordings)
    lines = [f"marked in {plural(count, 'recording')}"] if count else []
    print_reply(arguments, {"name": arguments.name, "recordings": marked.recordings}, *lines)
    return 1 if marked.problems else 0
