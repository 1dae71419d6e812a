"""``gswarm-tui attach``: the screen on a recorder that runs elsewhere."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from gswarm_tui.commands.head_choice import add_recording, choose_recording_head
from gswarm_tui.common.errors import quote
from gswarm_tui.control.client import RELAY_MAGIC
from gswarm_tui.options.arguments import CommandParser, UsageError, parse
from gswarm_tui.run.plan import require_terminal

BROWSER_DRIVER = "TEXTUAL_DRIVER"
"""Variable by which ``gswarm-tui web`` has Textual draw into a browser in the place of a terminal."""
_PIECE = 1 << 18


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Show a running recording until the user closes the screen. Raises UserError."""
    parser = CommandParser(
        "attach",
        "[RECORDING] [--host HOST] [--read-only]",
        "Show a running recording on the screen: one of record, of another terminal, or of another host. "
        "q closes the screen, and recording continues.",
        usual="the only running recording",
    )
    add_recording(parser)
    parser.add_argument("--host", metavar="HOST", help="host of the recorder, by your ssh: [user@]host")
    parser.add_argument("--read-only", action="store_true", help="refuse keys that change the recording")
    text = "join standard input and output to the recorder's socket"
    parser.add_argument("--relay", action="store_true", help=text)
    arguments = parser.read(args)
    if arguments.host is None and ":" in arguments.recording:
        arguments.host, _, arguments.recording = arguments.recording.partition(":")
    if arguments.host is not None and (not arguments.host or arguments.host.startswith("-")):
        raise UsageError(f"--host: {quote(arguments.host)} isn't a host.")
    choose = partial(choose_recording_head, arguments, environ, option="gswarm-tui attach RECORDING")
    if arguments.relay:
        _relay(choose().connect())
        return 0
    settings = parse([], environ)
    if BROWSER_DRIVER not in environ:
        require_terminal(sys.stdin, sys.stdout)
    from gswarm_tui.control.routes import SocketRoute, SshRoute
    from gswarm_tui.run.screen import run_viewer

    route = (
        SocketRoute(environ, choose)
        if arguments.host is None
        else SshRoute(arguments.host, str(arguments.db or arguments.recording))
    )
    return run_viewer(route, settings, environ, read_only=arguments.read_only)


def _relay(connection: socket.socket) -> None:
    """Join standard input and output to a recorder's socket until one of the ends closes."""

    def copy_input() -> None:
        with suppress(OSError):
            while data := os.read(0, _PIECE):
                connection.sendall(data)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=copy_input, daemon=True).start()
    with suppress(OSError):
        data = RELAY_MAGIC
        while data:
            data = data[os.write(1, data) :] or connection.recv(_PIECE)
