"""Choice of the running gswarm-tui that a command controls."""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gswarm_tui.common.errors import UserError, printable, quote
from gswarm_tui.common.time_input import TimeInputError, parse_time
from gswarm_tui.control import registry
from gswarm_tui.control.client import Head, NoHeadError, running_heads
from gswarm_tui.control.intents import RecorderError
from gswarm_tui.options.arguments import CommandParser, UsageError, is_recording

SHORT_ID = 8
USUAL = "that of the only running gswarm-tui"


def add_recording(parser: CommandParser) -> None:
    """Add the positional argument RECORDING, which ``choose_recording_head`` takes."""
    text = "ID, job or file of a recording"
    parser.add_argument("recording", nargs="?", default="", metavar="RECORDING", help=text)


def head_parser(name: str, usage: str, description: str, *, usual: str = USUAL) -> CommandParser:
    """Return the parser of a command that controls a recorder: options that choose one, and ``--json``."""
    parser = CommandParser(name, usage, description, usual=usual)
    text = "if several run: recording's ID, job or file name"
    parser.add_argument("--recording", metavar="RECORDING", default="", help=text)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def print_reply(arguments: argparse.Namespace, value: object, *lines: str) -> None:
    """Print a reply as JSON with ``--json``, else as lines."""
    if arguments.json:
        from gswarm_tui.printing.json_output import print_json  # late: training loops set marks

        print_json(value)
    else:
        for line in lines:
            print(printable(line))


def choose_head(
    arguments: argparse.Namespace, environ: Mapping[str, str], *, option: str = "--recording"
) -> Head:
    """Return the recorder that the options choose: the only running one, or that of this Slurm job.

    ``option`` is the one that would choose among several. Raises UserError, RecorderError if it hangs.
    """
    found = find_heads(arguments, environ)
    if len(found) > 1 and not arguments.recording and arguments.db is None:
        from gswarm_tui.slurm.jobs import label_of_shell

        found = [head for head in found if head.of_job(label_of_shell(environ))] or found
    if len(found) > 1:
        heads = ", ".join(map(describe_head, found))
        raise UsageError(
            f"{len(found)} running gswarm-tui processes match; choose one with {option}: {heads}."
        )
    if found[0].hangs:
        raise RecorderError(found[0].describe_hang())
    return found[0]


def choose_recording_head(arguments: argparse.Namespace, environ: Mapping[str, str], *, option: str) -> Head:
    """Return the recorder that the options choose, which records. Raises UserError."""
    if is_recording(arguments.recording):
        arguments.db, arguments.recording = Path(arguments.recording), ""
    head = choose_head(arguments, environ, option=option)
    if head.path is None:
        raise UserError(f"gswarm-tui with process {head.pid} records nothing, so it has no viewers.")
    return head


def find_heads(arguments: argparse.Namespace, environ: Mapping[str, str]) -> list[Head]:
    """Return the recorders that ``--db`` or ``--recording`` name, all without these. Raises NoHeadError."""
    running = running_heads(environ)
    if found := named_heads(running, arguments.recording, arguments.db):
        return found
    recording, db = arguments.recording, arguments.db
    if db is not None and (elsewhere := registry.describe_remote_writer(db)):
        raise NoHeadError(f"{elsewhere}.")
    which = f" records into {quote(str(db))}" if db is not None else " is running"
    if recording:
        which = f" has the recording, job or file name {quote(recording)}"
    remedy = "run this command on the machine that runs gswarm-tui"
    if running:
        remedy = f"running: {', '.join(map(describe_head, running))}"
    elif others := sorted({note.host for note in registry.remote_notes()}):
        remedy = f"run this command on {' or '.join(others)}, where one was started"
    raise NoHeadError(f"no gswarm-tui of yours on {socket.gethostname()}{which}; {remedy}.")


def named_heads(running: Sequence[Head], recording: str, db: Path | None) -> list[Head]:
    """Return the recorders with this recording: an ID's beginning, job or file name; and this file."""
    return [
        head
        for head in running
        if (db is None or head.records(db)) and (not recording or head.is_named(recording))
    ]


def describe_head(head: Head) -> str:
    """Return the words that choose a recorder, and what it records."""
    label = f"{head.job}, " if head.job else ""
    if head.path is None:
        return f"{head.pid} ({label}records nothing)"
    return f"{head.uid[:SHORT_ID] or head.pid} ({label}{head.path})"


def parse_head_time(text: str | None, head: Head) -> float | None:
    """Return the time of a recorder's recording that a text means, None without one. Raises UsageError."""
    if text is None:
        return None
    try:
        start, end = head.status.get("started_at", 0.0), head.status.get("now", time.time())
        return parse_time(text, start=start, end=end)
    except TimeInputError as error:
        raise UsageError(f"--at: {error}.") from None
