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
from gswarm_tui.server.listening import check_settings, listen, load_tls, url_of
from gswarm_tui.server.tokens import WATCH, Tokens, are_replaced, read_tokens, token_path

if TYPE_CHECKING:
    import socket

ENDED_EVERY_S = 1.0
"""Time between two checks whether the tokens were removed, by the recording's end or by the user."""


def run_web_server(head: Head, settings: ServerSettings) -> int:
    """Serve the screens of a head's recording until it ends or a signal comes. Raises UserError."""
    check_settings(settings, "--web", ("textual_serve",))
    log_file.begin()
    tokens = read_tokens(head.uid)
    listening = listen(settings, "--web")
    _print_links(settings, listening, tokens)
    return asyncio.run(_serve(head, settings, listening, tokens))


async def _serve(head: Head, settings: ServerSettings, listening: socket.socket, tokens: Tokens) -> int:
    from gswarm_tui.server.web import BrowserAccess, WebServer

    title = f"gswarm-tui · {head.job or (head.path.name if head.path is not None else head.uid)}"
    server = WebServer(BrowserAccess(tokens), ("attach", head.uid), title, settings.origins)
    signalled = asyncio.Event()
    call_at_signals(signalled.set)
    try:
        await server.start(listening, None if settings.tls_cert is None else load_tls(settings))
        while not signalled.is_set() and not are_replaced(tokens):
            try:
                async with asyncio.timeout(ENDED_EVERY_S):
                    await signalled.wait()
            except TimeoutError:
                continue
    finally:
        why = ""
        if are_replaced(tokens):
            if any(each.uid == head.uid for each in running_heads(os.environ)):
                print_notice("the tokens of this recording were removed; recording continues")
                why = "This link was withdrawn; recording continues."
            else:
                print_notice("the recording ended")
                why = "The recording has ended."
        await server.close(why)
    return 0


def _print_links(settings: ServerSettings, listening: socket.socket, tokens: Tokens) -> None:
    """Print the links to open; a terminal shows the tokens, and a file such as a job's output doesn't."""
    url = settings.origins[0] if settings.origins else url_of(settings, listening)
    for what, kind, token in (("watch", WATCH, tokens.watch), ("control", "", tokens.control)):
        if os.isatty(sys.stderr.fileno()):
            print_notice(f"to {what}: {url}/#{token}")
        else:
            print_notice(f"to {what}: {url}/#TOKEN, with the token in {token_path(tokens.uid, kind)}")
