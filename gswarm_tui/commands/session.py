"""``gswarm-tui session``: start, stop and rename sessions of a running gswarm-tui."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence

from gswarm_tui.commands.head_choice import (
    USUAL,
    add_head_options,
    choose_head,
    parse_head_time,
    request_head,
)
from gswarm_tui.common.errors import printable
from gswarm_tui.common.quantities import age, duration
from gswarm_tui.control.client import Head
from gswarm_tui.control.intents import ChangeSession, IntentError, StartSession, StopSession
from gswarm_tui.options.arguments import CommandParser, UsageError


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Start, stop or rename a session. Raises UserError."""
    parser = CommandParser(
        "session",
        "start [NAME] [--at TIME] [--note TEXT] [options]\n"
        "stop [NAME] [--at TIME] [options]\n"
        "rename NAME NEW-NAME [options]",
        "Start, stop or rename a session of a running gswarm-tui. Without NAME, start takes the next free "
        "session-1, session-2 ..., and stop ends all running sessions. gswarm-tui sessions lists them.",
        usual=USUAL,
    )
    parser.add_argument("action", nargs="?", metavar="start|stop|rename", help="what to do")
    parser.add_argument("names", nargs="*", metavar="SESSION", help="name of the session")
    parser.add_argument("--at", metavar="TIME", help="start or end: -2m, 14:05 (default: now)")
    parser.add_argument("--note", metavar="TEXT", help="note of the session that starts")
    add_head_options(parser)
    arguments = parser.read(args)
    if (act := _ACTIONS.get(arguments.action)) is None:
        raise UsageError("write gswarm-tui session start, session stop or session rename; see --help.")
    if arguments.note is not None and arguments.action != "start":
        raise UsageError("--note belongs to a session that starts; remove it.")
    if len(arguments.names) > 1 and arguments.action != "rename":
        raise UsageError("a session has one name; quote a name of several words.")
    try:
        return act(arguments, choose_head(arguments, environ))
    except IntentError as error:
        raise UsageError(f"{error}.") from None


def _start(arguments: argparse.Namespace, head: Head) -> int:
    name = arguments.names[0] if arguments.names else None
    at = parse_head_time(arguments.at, head)
    session = request_head(head, StartSession(name, at, arguments.note or ""))
    if arguments.json:
        _print_json(session)
    else:
        backdated = f", backdated {age(session['duration_s'])}" if session["duration_s"] >= 1 else ""
        print(f"started {printable(session['name'])}{backdated}")
    return 0


def _stop(arguments: argparse.Namespace, head: Head) -> int:
    name = arguments.names[0] if arguments.names else None
    stopped = request_head(head, StopSession(name, parse_head_time(arguments.at, head)))["stopped"]
    if arguments.json:
        _print_json(stopped)
    else:
        for session in stopped:
            print(f"stopped {printable(session['name'])} after {duration(session['duration_s'])}")
    return 0


def _rename(arguments: argparse.Namespace, head: Head) -> int:
    if len(arguments.names) != 2:
        raise UsageError("session rename needs the session's name and its new name.")
    if arguments.at is not None:
        raise UsageError("--at belongs to start and stop; remove it.")
    before, name = arguments.names
    session = request_head(head, ChangeSession(before, name))
    if arguments.json:
        _print_json(session)
    else:
        print(f"{printable(before)} is now {printable(session['name'])}")
    return 0


def _print_json(value: dict[str, object] | list[dict[str, object]]) -> None:
    from gswarm_tui.printing.json_output import print_json, with_times

    print_json(with_times(value) if isinstance(value, dict) else list(map(with_times, value)))


_ACTIONS: dict[str, Callable[[argparse.Namespace, Head], int]] = {
    "start": _start,
    "stop": _stop,
    "rename": _rename,
}
