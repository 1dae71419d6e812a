"""Runs ``gswarm-tui web``: the screens of one recording, in browsers."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from gswarm_tui.common.errors import print_notice
from gswarm_tui.control.client import Head, running_heads
from gswarm_tui.options.server_options import ServerSettings
from gswarm_tui.run import log_file
from gswarm_tui.run.event_loop import call_at_signals
from gswarm_tui.server.listening import check_settings, listen, url_of
from gswarm_tui.server.tokens import WATCH, Tokens, are_replaced, read_tokens, token_path

if TYPE_CHECKING:
    import socket

    from gswarm_tui.server.web import WebServer

ENDED_EVERY_S = 1.0
"""Time between two checks whether the tokens were removed, by the recording's end or by the user."""


def run_web_server(head: Head, settings: ServerSettings) -> int:
    """Serve the screens of a head's recording until it ends or a signal comes. Raises UserError."""
    check_settings(settings, "--web", ("fastapi", "uvicorn", "websockets", "textual_serve"))
    log_file.begin()
    tokens = read_tokens(head.uid)
    listening = listen(settings, "--web")
    url = settings.origins[0] if settings.origins else url_of(settings, listening)
    for what, kind, token in (("watch", WATCH, tokens.watch), ("control", "", tokens.control)):
        # A terminal shows the tokens, and a file such as a job's output doesn't.
        if os.isatty(sys.stderr.fileno()):
            print_notice(f"to {what}: {url}/#{token}")
        else:
            print_notice(f"to {what}: {url}/#TOKEN, with the token in {token_path(tokens.uid, kind)}")
    asyncio.run(_serve(head, settings, listening, tokens))
    return 0


async def _serve(head: Head, settings: ServerSettings, listening: socket.socket, tokens: Tokens) -> None:
    from gswarm_tui.server.web import BrowserAccess, WebServer

    title = f"gswarm-tui · {head.job or (head.path.name if head.path is not None else head.uid)}"
    server = WebServer(BrowserAccess(tokens), ("attach", head.uid), title, settings)
    call_at_signals(server.end)
    watching = asyncio.create_task(_close_at_end(server, tokens))
    await server.run(listening)
    watching.cancel()


async def _close_at_end(server: WebServer, tokens: Tokens) -> None:
    """Close the server with the reason once the tokens were removed."""
    while not are_replaced(tokens):  # noqa: ASYNC110 - files give no events
        await asyncio.sleep(ENDED_EVERY_S)
    if any(each.uid == tokens.uid for each in running_heads(os.environ)):
        print_notice("the tokens of this recording were removed; recording continues")
        await server.close("This link was withdrawn; recording continues.")
    else:
        print_notice("the recording ended")
        await server.close("The recording has ended.")
