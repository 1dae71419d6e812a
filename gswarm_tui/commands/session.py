"""``gswarm-tui session``: start, stop and rename sessions of a running gswarm-tui."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gswarm_tui.commands.head_choice import (
    USUAL,
    add_head_options,
    choose_head,
    parse_head_time,
)
from gswarm_tui.common.errors import printable
from gswarm_tui.common.quantities import age, duration
from gswarm_tui.control.intents import ChangeSession, IntentError, StartSession, StopSession
from gswarm_tui.options.arguments import CommandParser, UsageError
from gswarm_tui.printing.json_output import print_json, with_times

_START, _STOP, _RENAME = "[NAME] [options]", "[SESSION] [options]", "SESSION NEW-NAME [options]"


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Start, stop or rename a session. Raises UserError."""
    if args and (act := _ACTIONS.get(args[0])) is not None:
        try:
            return act(args[1:], environ)
        except IntentError as error:
            raise UsageError(f"{error}.") from None
    parser = CommandParser(
        "session",
        f"start {_START}\nstop {_STOP}\nrename {_RENAME}",
        "Start, stop or rename a session of a running gswarm-tui. gswarm-tui sessions lists them.",
        database=False,
    )
    parser.add_argument("action", nargs="?", metavar="start|stop|rename", help="each has its own --help")
    parser.parse_known_args(args)  # prints the help for --help
    raise UsageError("write gswarm-tui session start, session stop or session rename; see --help.")


def _start(args: Sequence[str], environ: Mapping[str, str]) -> int:
    parser = CommandParser("session start", _START, "Start a session, now or in the past.", usual=USUAL)
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="default: the next of session-1, session-2 ..."
    )
    parser.add_argument("--at", metavar="TIME", help="start of the session: -2m, 14:05 (default: now)")
    parser.add_argument("--note", metavar="TEXT", default="", help="note of the session")
    add_head_options(parser)
    arguments = parser.read(args)
    head = choose_head(arguments, environ)
    at = parse_head_time(arguments.at, head)
    session = head.carry_out(StartSession(arguments.name, at, arguments.note))
    if arguments.json:
        _print_json(session)
    else:
        backdated = f", backdated {age(session['duration_s'])}" if session["duration_s"] >= 1 else ""
        print(f"started {printable(session['name'])}{backdated}")
    return 0


def _stop(args: Sequence[str], environ: Mapping[str, str]) -> int:
    parser = CommandParser("session stop", _STOP, "End a running session, or all.", usual=USUAL)
    parser.add_argument("session", nargs="?", metavar="SESSION", help="name (default: all running sessions)")
    parser.add_argument("--at", metavar="TIME", help="end of the session: -2m, 14:05 (default: now)")
    add_head_options(parser)
    arguments = parser.read(args)
    head = choose_head(arguments, environ)
    at = parse_head_time(arguments.at, head)
    stopped = head.carry_out(StopSession(arguments.session, at))["stopped"]
    if arguments.json:
        _print_json(stopped)
    else:
        for session in stopped:
            print(f"stopped {printable(session['name'])} after {duration(session['duration_s'])}")
    return 0


def _rename(args: Sequence[str], environ: Mapping[str, str]) -> int:
    parser = CommandParser(
        "session rename", _RENAME, "Rename a session, a running or an ended one.", usual=USUAL
    )
    parser.add_argument("session", metavar="SESSION", help="name of the session")
    parser.add_argument("name", metavar="NEW-NAME", help="its new name")
    add_head_options(parser)
    arguments = parser.read(args)
    head = choose_head(arguments, environ)
    session = head.carry_out(ChangeSession(arguments.session, arguments.name))
    if arguments.json:
        _print_json(session)
    else:
        print(f"{printable(arguments.session)} is now {printable(session['name'])}")
    return 0


def _print_json(value: dict[str, object] | list[dict[str, object]]) -> None:
    print_json(with_times(value) if isinstance(value, dict) else list(map(with_times, value)))


_ACTIONS = {"start": _start, "stop": _stop, "rename": _rename}
