"""HTTP servers: each is a client of a recorder, as a process of ``gswarm-tui serve`` or ``web``."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from gswarm_tui.common.errors import print_notice
from gswarm_tui.control.client import Head, running_heads
from gswarm_tui.fleet.session_texts import MAX_NOTE
from gswarm_tui.options.server_options import ServerSettings
from gswarm_tui.run import log_file
from gswarm_tui.run.lifetime import delay_garbage_collection
from gswarm_tui.run.signals import call_at_signals
from gswarm_tui.server.listening import check_settings, listen, url_of
from gswarm_tui.server.tokens import WATCH, are_replaced, check_folder, read_tokens, token_path

if TYPE_CHECKING:
    from gswarm_tui.control.recorder import Route
ENDED_EVERY_S = 1.0
"""Time between two checks whether the tokens were removed, by the recording's end or by the user."""


def check_server(settings: ServerSettings) -> None:
    """Refuse settings with which an HTTP server can't start, also a port in use. Raises UserError."""
    check_settings(settings)
    check_folder()
    listen(settings).close()


async def serve(route: Route, settings: ServerSettings, *, beside: bool = False) -> None:
    """Serve the recorder at the end of a route until it ends, or a signal ends the server.

    Print where the server is, and log it for the screens. A server ``beside`` its recorder leaves it to that
    one to report the end. Raises UserError.
    """
    from gswarm_tui.control.intents import LogEvent
    from gswarm_tui.control.recorder import Recorder
    from gswarm_tui.server.api import api_router
    from gswarm_tui.server.application import HttpServer, build_app
    from gswarm_tui.server.event_stream import FrameStream
    from gswarm_tui.server.gswarm_profiler_api import gswarm_profiler_router
    from gswarm_tui.server.guard import Guard
    from gswarm_tui.server.requests import RecorderRequests
    from gswarm_tui.server.scrape import metrics_router
    from gswarm_tui.server.session_exports import SessionExports

    attached = Recorder(route)
    await attached.start()
    delay_garbage_collection()  # which would hold up requests
    tokens = read_tokens(attached.uid)
    requests, stream = RecorderRequests(attached), FrameStream(attached, tokens)
    exports = SessionExports(attached)
    app = build_app(
        gswarm_profiler_router(attached, requests, exports),
        api_router(attached, requests, stream),
        metrics_router(attached),
        openapi_url="/api/v1/openapi.json",
    )
    listening = listen(settings)
    server = HttpServer(Guard(app, tokens, settings.origins), settings, stream.close)
    call_at_signals(server.end)

    def check() -> None:
        stream.check()
        # A client is gone for good when the recorder and its parent were killed: nobody restarts them.
        if attached.gone:
            server.end()

    attached.flushed.append(check)
    following = asyncio.create_task(attached.run(), name="client")
    following.add_done_callback(lambda _: server.end())
    where = f"HTTP server at {url_of(settings, listening)}, token in {token_path(attached.uid)}"
    print_notice(where)
    attached.request(LogEvent("notice", where[:MAX_NOTE]).message(), lambda _reply: None)
    try:
        await server.serve_at(listening)
        await exports.finish()
        if attached.ended and not beside:
            print_notice("the recording ended")
        if following.done():
            await following
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await route.close()


# Screens in browsers


def run_web_server(head: Head, settings: ServerSettings) -> int:
    """Serve the screens of a recorder's recording until it ends or a signal comes. Raises UserError."""
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
    from gswarm_tui.server.web import BrowserAccess, WebServer

    title = f"gswarm-tui · {head.job or (head.path.name if head.path is not None else head.uid)}"
    access = BrowserAccess(tokens, url_of(settings, listening))

    async def serve_screens() -> None:
        server = WebServer(access, ("attach", head.uid), title, settings)
        call_at_signals(server.end)
        watching = asyncio.create_task(close_at_end(server))
        await server.run(listening)
        watching.cancel()

    async def close_at_end(server: WebServer) -> None:
        """Close the server with the reason once the tokens were removed."""
        while not are_replaced(tokens):  # noqa: ASYNC110 - files give no events
            await asyncio.sleep(ENDED_EVERY_S)
        if any(each.uid == tokens.uid for each in running_heads(os.environ)):
            print_notice("the tokens of this recording were removed; recording continues")
            await server.close("This link was withdrawn; recording continues.")
        else:
            print_notice("the recording ended")
            await server.close("The recording has ended.")

    asyncio.run(serve_screens())
    return 0
