"""``gswarm-tui session``: start, stop and rename sessions of a running gswarm-tui."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gswarm_tui.commands.head_choice import choose_head, head_parser, parse_head_time, print_reply
from gswarm_tui.common.quantities import age, duration
from gswarm_tui.control.intents import ChangeSession, Intent, IntentError, StartSession, StopSession
from gswarm_tui.options.arguments import UsageError
from gswarm_tui.printing.json_output import with_times

_ACTIONS = {"start": "[NAME]", "stop": "[SESSION]", "rename": "SESSION NEW-NAME"}


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Start, stop or rename a session. Raises UserError."""
    parser = head_parser(
        "session",
        "\n".join(f"{action} {names} [options]" for action, names in _ACTIONS.items()),
        "Start a session of a running gswarm-tui, now or in the past; end one or all; or rename one, a "
        "running or an ended one. gswarm-tui sessions lists them.",
    )
    parser.add_argument("action", choices=_ACTIONS, metavar="|".join(_ACTIONS), help="what to do")
    names_help = "name; default: the next of session-1, session-2 ..., or all running ones to stop"
    parser.add_argument("names", nargs="*", default=[], metavar="SESSION", help=names_help)
    at_help = "start or end of the session: -2m, 14:05 (default: now)"
    parser.add_argument("--at", metavar="TIME", help=at_help)
    parser.add_argument("--note", metavar="TEXT", help="note of the session that starts")
    arguments = parser.read(args)
    action, names = arguments.action, arguments.names
    if (len(names) != 2) if action == "rename" else (len(names) > 1):
        raise UsageError(f"write gswarm-tui session {action} {_ACTIONS[action]}; see --help.")
    if arguments.note is not None and action != "start":
        raise UsageError("--note applies only to session start; remove it.")
    if arguments.at is not None and action == "rename":
        raise UsageError("--at applies only to session start and session stop; remove it.")
    head = choose_head(arguments, environ)
    at, name = parse_head_time(arguments.at, head), names[0] if names else None
    try:
        intent: Intent = StopSession(name, at, wait=True)
        if action == "start":
            intent = StartSession(name, at, arguments.note or "")
        elif action == "rename":
            intent = ChangeSession(*names)
    except IntentError as error:
        raise UsageError(f"{error}.") from None
    reply = head.carry_out(intent)
    if action == "stop":
        stopped = [with_times(session) for session in reply["stopped"]]
        lines = [f"stopped {each['name']} after {duration(each['duration_s'])}" for each in stopped]
        print_reply(arguments, stopped, *lines)
    elif action == "rename":
        print_reply(arguments, with_times(reply), f"{names[0]} is now {reply['name']}")
    else:
        backdated = f", backdated {age(reply['duration_s'])}" if reply["duration_s"] >= 1 else ""
        print_reply(arguments, with_times(reply), f"started {reply['name']}{backdated}")
    return 0
