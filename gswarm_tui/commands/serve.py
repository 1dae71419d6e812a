"""``gswarm-tui serve``: an HTTP server on a running recorder, for scripts and web pages."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from gswarm_tui.commands.head_choice import add_recording, choose_recording_head
from gswarm_tui.options.arguments import CommandParser
from gswarm_tui.options.server_options import add_server_options, server_settings


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Serve a running recording until it ends or a signal comes. Raises UserError."""
    parser = CommandParser(
        "serve",
        "[RECORDING] [--http HOST:PORT] [options]",
        "Answer HTTP requests about a running recording, for scripts and web pages: its state, its sessions "
        "and marks, SQL, and each new frame. Prints the address, and the file of the token that each request "
        "needs. Ctrl-C ends the server, and recording continues.",
        usual="the only running recording",
    )
    add_recording(parser)
    add_server_options(parser, default=True)
    parser.add_argument("--beside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.read(args)
    settings = server_settings(arguments.http, vars(arguments))
    from gswarm_tui.control.routes import SocketRoute
    from gswarm_tui.run import log_file
    from gswarm_tui.run.http_server import check_server, serve

    choose = partial(choose_recording_head, arguments, environ, option="gswarm-tui serve RECORDING")
    choose()  # before the port is taken
    check_server(settings)
    log_file.begin()
    asyncio.run(serve(SocketRoute(environ, choose), settings, beside=arguments.beside))
    return 0
