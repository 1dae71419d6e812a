"""HTTP server of a recorder: runs it in this process, or beside the recorder in one that ends with it.

A child is started as ``python -m gswarm_tui.run.http_server``. Its standard input has its settings, and then
stays open as long as the recorder lives. The listening socket is opened before recording begins and passed on
to each child, so that clients reach a restarted recorder at the same address.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gswarm_tui.common.errors import UserError, print_notice
from gswarm_tui.options.server_options import ServerSettings
from gswarm_tui.run import log_file
from gswarm_tui.run.event_loop import call_at_signals
from gswarm_tui.run.lifetime import delay_garbage_collection
from gswarm_tui.server.listening import check_settings, listen, url_of
from gswarm_tui.server.tokens import check_folder, read_tokens, token_path

if TYPE_CHECKING:
    from gswarm_tui.control.attached import Route

RESTART_S = 5.0
POLL_S = 0.5

_LOG = logging.getLogger(__name__)


class Listener(NamedTuple):
    """Listening socket of an HTTP server that was checked and can start, with its settings."""

    settings: ServerSettings
    socket: socket.socket

    @classmethod
    def open(cls, settings: ServerSettings) -> Listener:
        """Check the settings and open the socket. Raises UserError."""
        check_settings(settings)
        check_folder()
        return cls(settings, listen(settings))

    def describe(self, uid: str) -> str:
        """Return the server's address and its token's file, which exists from then on, as a clause."""
        with suppress(UserError):  # the server reports it
            read_tokens(uid)
        return f"HTTP server at {url_of(*self)}, token in {token_path(uid)}"


async def serve(route: Route, listener: Listener, lifeline: int | None = None) -> None:
    """Serve the recorder at the end of a route until it, the ``lifeline`` or a signal ends the server.

    Without a lifeline, print where the server is and why it ends. Raises UserError.
    """
    from gswarm_tui.control.attached import AttachedRun
    from gswarm_tui.server.api import api_router
    from gswarm_tui.server.application import HttpServer, build_app
    from gswarm_tui.server.event_stream import FrameStream
    from gswarm_tui.server.gswarm_profiler_api import gswarm_profiler_router
    from gswarm_tui.server.guard import Guard
    from gswarm_tui.server.requests import RecorderRequests
    from gswarm_tui.server.scrape import metrics_router
    from gswarm_tui.server.session_exports import SessionExports

    settings = listener.settings

    attached = AttachedRun(route)
    following = None
    try:
        await attached.start()
        delay_garbage_collection()  # which would hold up requests
        tokens = read_tokens(attached.uid)
        requests, stream = RecorderRequests(attached), FrameStream(attached, tokens)
        exports = SessionExports(attached)
        attached.flushed.append(stream.check)
        app = build_app(
            gswarm_profiler_router(attached, requests, exports),
            api_router(attached, requests, stream, exports),
            metrics_router(attached),
            openapi_url="/api/v1/openapi.json",
        )
        server = HttpServer(Guard(app, tokens, settings.origins), settings, stream.close)
        call_at_signals(server.end)
        following = asyncio.create_task(attached.run(), name="viewer")
        following.add_done_callback(lambda _: server.end())
        if lifeline is not None:
            loop = asyncio.get_running_loop()

            def end(pipe: int = lifeline) -> None:
                # The recorder writes nothing more to its pipe, so it is readable once it has ended.
                loop.remove_reader(pipe)
                server.end()

            loop.add_reader(lifeline, end)
        else:
            print_notice(listener.describe(attached.uid))
        await server.serve(sockets=[listener.socket])
        await exports.finish()
        if lifeline is None and attached.ended:
            print_notice("the recording ended")
        if following.done():
            await following
    finally:
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        attached.close()
        await route.close()


async def keep_running(listener: Listener, uid: str, report: Callable[[str], None]) -> None:
    """Run the HTTP server of a recording in a child until cancelled, and restart it if it ends by itself.

    ``report`` gets a sentence each time that it has ended or can't be started.
    """
    while True:
        try:
            child = _start_child(listener, uid)
        except OSError as error:
            what = f"can't be started: {error.strerror}"
        else:
            try:
                while (status := child.poll()) is None:  # noqa: ASYNC110 - asyncio's own would end with the loop
                    await asyncio.sleep(POLL_S)
            finally:
                if child.stdin is not None:
                    child.stdin.close()
            what = f"ended with status {status}"
        report(f"the HTTP server {what}; restarting it in {RESTART_S:.0f} s")
        await asyncio.sleep(RESTART_S)


def _start_child(listener: Listener, uid: str) -> subprocess.Popen[bytes]:
    """Start a server, which lives until its standard input is closed and its exports are written."""
    descriptor = listener.socket.fileno()
    start = {"uid": uid, "socket": descriptor, "settings": listener.settings._asdict()}
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "gswarm_tui.run.http_server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(descriptor,),
        start_new_session=True,
    )
    assert child.stdin is not None  # noqa: S101 - a pipe
    with suppress(BrokenPipeError):
        child.stdin.write(json.dumps(start, default=str).encode() + b"\n")
        child.stdin.flush()
    return child


def main() -> int:
    """Serve the recording that standard input names, until its recorder ends."""
    from gswarm_tui.control.routes import SocketRoute, recording_head

    log_file.begin()
    if not (line := sys.stdin.buffer.readline()):
        return 1
    start = json.loads(line)
    settings = start["settings"]
    tls = {name: Path(settings[name]) for name in ("tls_cert", "tls_key") if settings[name]}
    listener = Listener(ServerSettings(**settings | tls), socket.socket(fileno=start["socket"]))
    route = SocketRoute(os.environ, partial(recording_head, start["uid"], os.environ))
    try:
        asyncio.run(serve(route, listener, lifeline=0))
        return 0
    except KeyboardInterrupt:
        return 1
    except UserError as error:  # its recorder has ended, or has just been killed
        _LOG.warning("the HTTP server ended: %s", error)
        return 1
    except Exception:  # nobody reads its standard error
        _LOG.exception("the HTTP server failed")
        return 1


if __name__ == "__main__":
    sys.exit(main())
