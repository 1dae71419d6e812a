"""``gswarm-tui web``: the screens of a running recording, in browsers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gswarm_tui.commands.head_choice import add_recording, choose_recording_head
from gswarm_tui.options.arguments import CommandParser
from gswarm_tui.options.server_options import add_web_options, server_settings


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Serve a running recording to browsers until it ends or a signal comes. Raises UserError."""
    parser = CommandParser(
        "web",
        "[RECORDING] [--web HOST:PORT] [options]",
        "Show a running recording in browsers. Prints two links: one to watch, and one with which all keys "
        "work. Ctrl-C ends the server, and recording continues.",
        usual="the only running recording",
    )
    add_recording(parser)
    add_web_options(parser)
    arguments = parser.read(args)
    settings = server_settings(arguments.web, vars(arguments))
    head = choose_recording_head(arguments, environ, option="gswarm-tui web RECORDING")
    from gswarm_tui.run.http_server import run_web_server

    return run_web_server(head, settings)
