"""Pages of ``gswarm-tui web``: each gets a viewer of its own, drawn by textual-serve's script.

textual-serve's own server has no access control, so only its scripts and fonts are served here.
docs/decisions/016-browser.md has the attacks and the reasons.
"""

from __future__ import annotations

import asyncio
import hmac
import html
import json
import logging
import socket
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from importlib.resources import files
from pathlib import Path
from string import Template

from fastapi import APIRouter, HTTPException, Request, Response, WebSocket
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse
from starlette.websockets import WebSocketDisconnect

from gswarm_tui.options.server_options import ServerSettings
from gswarm_tui.server.application import HttpServer, build_app
from gswarm_tui.server.guard import Guard
from gswarm_tui.server.screen_process import ScreenProcess
from gswarm_tui.server.tokens import Tokens

MAX_SCREENS = 8
"""Screens that are open at once; each is a process of some 80 MB."""
REFUSED, OVER = 4000, 4001
"""Close codes of a connection whose reason is a sentence that the page shows; ``OVER``: for good."""
MAX_REASON = 123
"""Bytes that a close reason may have."""
NO_LINK = "Open the whole link that gswarm-tui web printed, with its token after the #."
WRONG_LINK = (
    "This link isn't valid, or its recording has ended; open the one that gswarm-tui web printed last."
)
TOO_MANY = f"{MAX_SCREENS} screens are open, which is the most; close one, then open this one again."
_PAGES = Path(str(files("gswarm_tui.server") / "browser"))
_TEXTUAL_SERVE = Path(str(files("textual_serve") / "static"))
_STATIC = {
    "enter.js": _PAGES / "enter.js",
    "screen.js": _PAGES / "screen.js",
    "page.css": _PAGES / "page.css",
    "icon.svg": _PAGES / "icon.svg",
    "textual.js": _TEXTUAL_SERVE / "js" / "textual.js",
    "xterm.css": _TEXTUAL_SERVE / "css" / "xterm.css",
    "roboto-mono.ttf": _TEXTUAL_SERVE / "fonts" / "RobotoMono-VariableFont_wght.ttf",
}
"""All files that are served, so that no folder is."""
_PAGE_HEADERS = {
    # xterm.js writes its styles into the page.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "font-src 'self'; img-src 'self'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'",
}

_LOG = logging.getLogger(__name__)


class Permission(Enum):
    """Permission of a screen in a browser: to change the recording, or only to watch."""

    WATCH = "watch"
    CONTROL = "control"


class BrowserAccess:
    """Tokens of one recording and the cookies that they are exchanged for.

    A cookie is a keyed hash, so that it is valid after a restart of the server and reveals no token.
    """

    def __init__(self, tokens: Tokens) -> None:
        self.cookie_name = f"gswarm-tui-{tokens.uid[:8]}"
        self._tokens = {Permission.WATCH: tokens.watch, Permission.CONTROL: tokens.control}
        self.cookies = {
            permission: hmac.digest(token.encode(), f"browser {tokens.uid}".encode(), "sha256").hex()
            for permission, token in self._tokens.items()
        }

    def of_token(self, token: str) -> Permission | None:
        """Return what a link's token permits, None for a wrong one."""
        return _find(token, self._tokens)

    def of_cookie(self, page: Request | WebSocket) -> Permission | None:
        """Return what a page's cookie permits, None without a right one."""
        return _find(page.cookies.get(self.cookie_name, ""), self.cookies)


def _find(given: str, known: dict[Permission, str]) -> Permission | None:
    """Return the permission with this secret, compared in constant time; None without one."""
    matches = (each for each, secret in known.items() if hmac.compare_digest(given.encode(), secret.encode()))
    return next(matches, None)


class WebServer:
    """Server of one recording's screens; ``words`` start a viewer of it."""

    def __init__(
        self, access: BrowserAccess, words: Sequence[str], title: str, settings: ServerSettings
    ) -> None:
        self._access = access
        self._words = words
        self._screens: set[WebSocket] = set()
        page = (_PAGES / "screen.html").read_text(encoding="utf-8")
        self._screen_page = Template(page).substitute(title=html.escape(title))
        router = APIRouter()
        router.add_api_route("/", self._send_enter_page, response_class=FileResponse)
        router.add_api_route("/enter", self._enter, methods=["POST"], response_class=Response)
        router.add_api_route("/screen", self._send_screen_page, response_class=Response)
        router.add_api_route("/static/{name}", self._send_file, response_class=FileResponse)
        router.add_api_websocket_route("/ws", self._open_screen)
        self._server = HttpServer(Guard(build_app(router), None, settings.origins), settings)

    async def run(self, listening: socket.socket) -> None:
        """Serve on a socket that listens until ``end`` or ``close`` is called."""
        await self._server.serve(sockets=[listening])

    def end(self) -> None:
        """Close all connections; the pages try to reconnect."""
        self._server.end()

    async def close(self, why: str) -> None:
        """Close all screens and connections; the pages show ``why``."""
        closing = [page.close(OVER, why) for page in self._screens]
        await asyncio.gather(*closing, return_exceptions=True)
        self.end()

    # Pages

    async def _send_enter_page(self) -> FileResponse:
        return FileResponse(_PAGES / "enter.html", headers={**_PAGE_HEADERS, "Cache-Control": "no-cache"})

    async def _enter(self, request: Request) -> Response:
        """Set the cookie for a token; without a token, check the cookie that there is."""
        token = (await request.body()).decode("ascii", "replace")
        permission = self._access.of_token(token) if token else self._access.of_cookie(request)
        if permission is None:
            raise HTTPException(403, WRONG_LINK if token else NO_LINK)
        response = Response(status_code=204)
        response.set_cookie(
            self._access.cookie_name,
            self._access.cookies[permission],
            httponly=True,
            samesite="strict",
            secure=request.headers["Origin"].startswith("https:"),
        )
        return response

    async def _send_screen_page(self, request: Request) -> Response:
        if self._access.of_cookie(request) is None:
            return RedirectResponse("./", 303)
        return HTMLResponse(self._screen_page, headers=_PAGE_HEADERS)

    async def _send_file(self, name: str) -> FileResponse:
        if (path := _STATIC.get(name)) is None:
            raise HTTPException(404)
        return FileResponse(path, headers={"Cache-Control": "no-cache"})

    # Screens

    async def _open_screen(self, page: WebSocket) -> None:
        """Run a viewer for as long as its page is open."""
        if (permission := self._access.of_cookie(page)) is None:
            await page.send_denial_response(JSONResponse({"detail": NO_LINK}, 403))
            return
        await page.accept()
        if len(self._screens) >= MAX_SCREENS:
            await page.close(REFUSED, TOO_MANY)
            return
        self._screens.add(page)
        try:
            sizes = [page.query_params.get(name, "") for name in ("width", "height")]
            columns, rows = (int(text) if text.isdecimal() and len(text) < 5 else 0 for text in sizes)
            read_only = ("--read-only",) * (permission is Permission.WATCH)
            await _show(await ScreenProcess.start([*self._words, *read_only], columns, rows), page)
        finally:
            self._screens.discard(page)


async def _show(process: ScreenProcess, page: WebSocket) -> None:
    """Join a screen's process to a page until one of them ends; close the connection with the reason."""
    joined = asyncio.create_task(_draw(process, page)), asyncio.create_task(_take_all(process, page))
    try:
        await asyncio.wait(joined, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in joined:
            task.cancel()
        why = (await process.end()).encode()[:MAX_REASON].decode(errors="ignore")
        with suppress(RuntimeError, WebSocketDisconnect):  # the page has closed it
            await page.close(REFUSED if why else 1000, why)
        await asyncio.wait(joined)


async def _draw(process: ScreenProcess, page: WebSocket) -> None:
    """Send what the process draws."""
    with suppress(RuntimeError, WebSocketDisconnect):  # the browser has gone
        async for data in process.output():
            await page.send_bytes(data)


async def _take_all(process: ScreenProcess, page: WebSocket) -> None:
    """Pass on the messages of textual-serve's script."""
    try:
        async for message in page.iter_text():
            match json.loads(message):
                case ["stdin", str(text)]:
                    await process.type(text)
                case ["resize", {"width": int(columns), "height": int(rows)}]:
                    await process.resize(columns, rows)
                case _:  # "ping", "focus" and "blur", which change nothing that is shown
                    pass
    except (OSError, ValueError, KeyError, RuntimeError):
        # The process has ended, or the page sent what textual-serve's script doesn't.
        _LOG.debug("a screen's connection failed", exc_info=True)
