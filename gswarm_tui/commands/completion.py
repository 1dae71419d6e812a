"""``gswarm-tui completion``: print the script with which a shell completes commands, options and names.

The script runs ``gswarm-tui`` with the variable ``_ARGCOMPLETE`` at each press of the tab key. ``complete``
then lets the parser of the command that is being typed suggest words, and the running heads and recordings
those that only they know.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import argcomplete
from argcomplete.completers import FilesCompleter
from argcomplete.lexers import split_line
from argcomplete.shell_integration import shellcode

from gswarm_agent.metrics import METRIC_GROUPS
from gswarm_tui.common.errors import UserError
from gswarm_tui.options.arguments import CommandParser, UsageError, observe_parser, parse
from gswarm_tui.options.command_table import COMMANDS, Command

SHELLS = ("bash", "zsh", "fish")
_PROGRAM = "gswarm-tui"

Suggestions = Mapping[str, str]
"""Words that fit, and a description of each."""
Completer = Callable[..., Suggestions | Sequence[str]]
"""Called by argcomplete with the keywords ``prefix``, ``action``, ``parser`` and ``parsed_args``."""


def run(args: Sequence[str], _environ: Mapping[str, str]) -> int:
    """Print a shell's completion script. Raises UserError."""
    parser = CommandParser(
        "completion",
        "|".join(SHELLS),
        "Print the script with which bash, zsh or fish completes commands, options, sessions and recordings. "
        f'For bash, put this line into ~/.bashrc: eval "$({_PROGRAM} completion bash)"',
        database=False,
    )
    parser.add_argument("shell", metavar="|".join(SHELLS), help="the shell")
    shell = parser.read(args).shell
    if shell not in SHELLS:
        raise UsageError(f"completion is for {', '.join(SHELLS[:-1])} or {SHELLS[-1]}.")
    print(shellcode([_PROGRAM], shell=shell))
    return 0


def complete(environ: Mapping[str, str]) -> int:
    """Write the words that fit to the shell, which passes the line in the environment, and exit."""
    typed = split_line(environ["COMP_LINE"], int(environ["COMP_POINT"]))[3]
    command = next((each for each in COMMANDS if typed[1:2] == [each.name]), None)
    observe_parser(partial(_suggest, command, environ))
    with contextlib.suppress(UserError):
        if command is None:
            parse([], environ)
        else:
            os.environ["_ARGCOMPLETE"] = "2"  # the parser's own words follow these
            importlib.import_module(f"gswarm_tui.commands.{command.module or command.name}").run([], environ)
    return 0


def _suggest(command: Command | None, environ: Mapping[str, str], parser: argparse.ArgumentParser) -> None:
    """Write the words that fit into the command's parser, and exit."""
    if command is None:
        parser.add_argument("command", nargs="?", metavar="COMMAND")
    elif command.runs_another:
        parser.add_argument("command", nargs="*", metavar="FILE")
    # A command that chooses a running recorder completes its running sessions.
    controls = any(action.dest == "recording" for action in parser._actions)
    for action in parser._actions:  # argparse has no public list of them
        action.completer = _completer(action, environ, controls=controls)  # type: ignore[attr-defined]
        action.type = None  # the shell hasn't expanded the variables in values yet
    argcomplete.autocomplete(parser, always_complete_options=False)


def _completer(action: argparse.Action, environ: Mapping[str, str], *, controls: bool) -> Completer:
    """Return what completes an option's value or a positional argument."""
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    if "|" in metavar or action.choices:
        return _constant(dict.fromkeys(map(str, action.choices or metavar.split("|")), ""))
    if action.dest == "db":
        return FilesCompleter(("duckdb",))
    if metavar == "GROUPS":
        return _constant(METRIC_GROUPS)
    if metavar == "COMMAND":
        return _constant({command.name: command.help for command in COMMANDS})
    if metavar == "RECORDING":
        return partial(_recordings, environ)
    if metavar in ("SESSION", "RUN"):
        return partial(_running_sessions if controls else _recorded_sessions, environ)
    return FilesCompleter() if metavar.startswith(("PATH", "FILE")) else _constant({})


def _constant(suggestions: Suggestions) -> Completer:
    return lambda **_keywords: suggestions


def _recordings(environ: Mapping[str, str], **_keywords: object) -> Suggestions:
    """Return the IDs of the recordings that are being written."""
    from gswarm_tui.commands.head_choice import SHORT_ID, describe_head
    from gswarm_tui.control.client import running_heads

    return {head.uid[:SHORT_ID]: describe_head(head) for head in running_heads(environ) if head.uid}


def _running_sessions(
    environ: Mapping[str, str], *, parsed_args: argparse.Namespace, **_keywords: object
) -> Suggestions:
    """Return the running sessions of the chosen recorders, for ``session stop`` and ``session rename``."""
    from gswarm_tui.commands.head_choice import named_heads
    from gswarm_tui.control.client import running_heads

    heads = named_heads(running_heads(environ), parsed_args.recording, parsed_args.db)
    return {session["name"]: "running" for head in heads for session in head.status.get("sessions", ())}


def _recorded_sessions(
    environ: Mapping[str, str], *, parsed_args: argparse.Namespace, **_keywords: object
) -> Suggestions:
    """Return the sessions of the recording that the command would read."""
    from gswarm_tui.analysis import periods
    from gswarm_tui.commands.recording_choice import open_source

    db = None if parsed_args.db is None else Path(parsed_args.db).expanduser()
    with contextlib.suppress(UserError), contextlib.closing(open_source(db, environ)) as source:
        sessions = periods.load_sessions(source)
        return dict(zip(periods.references(sessions), (session.note for session in sessions), strict=True))
    return {}
