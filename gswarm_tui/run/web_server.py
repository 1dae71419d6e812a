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
from gswarm_tui.run.supervisor import ENDING
from gswarm_tui.server.browser_access import BrowserAccess, Permission
from gswarm_tui.server.listening import check_settings, listen, load_tls, url_of
from gswarm_tui.server.tokens import WATCH, Tokens, are_replaced, read_tokens, token_path

if TYPE_CHECKING:
    import socket

ENDED_EVERY_S = 1.0
"""Time between two checks whether the tokens were removed, by the recording's end or by the user."""
_LINKS = ((Permission.WATCH, "watch", WATCH), (Permission.CONTROL, "control", ""))


def run_web_server(head: Head, settings: ServerSettings) -> int:
    """Serve the screens of a head's recording until it ends or a signal comes. Raises UserError."""
    check_settings(settings, "--web", ("textual_serve",))
    log_file.begin()
    tokens = read_tokens(head.uid)
    access = BrowserAccess(head.uid, {Permission.WATCH: tokens.watch, Permission.CONTROL: tokens.control})
    listening = listen(settings, "--web")
    _print_links(settings, listening, head.uid, access)
    return asyncio.run(_serve(head, settings, listening, access, tokens))


async def _serve(
    head: Head, settings: ServerSettings, listening: socket.socket, access: BrowserAccess, tokens: Tokens
) -> int:
    from gswarm_tui.server.web import WebServer

    title = f"gswarm-tui · {head.job or (head.path.name if head.path is not None else head.uid)}"
    server = WebServer(access, ("attach", head.uid), title, settings.origins)
    signalled = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in ENDING:
        loop.add_signal_handler(number, signalled.set)
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


def _print_links(settings: ServerSettings, listening: socket.socket, uid: str, access: BrowserAccess) -> None:
    """Print the links to open; a terminal shows the tokens, and a file such as a job's output doesn't."""
    url = settings.origins[0] if settings.origins else url_of(settings, listening)
    for permission, what, kind in _LINKS:
        if os.isatty(sys.stderr.fileno()):
            print_notice(f"to {what}: {url}/#{access.token(permission)}")
        else:
            print_notice(f"to {what}: {url}/#TOKEN, with the token in {token_path(uid, kind)}")
