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
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from importlib.resources import files
from pathlib import Path
from string import Template

from fastapi import APIRouter, HTTPException, WebSocket
from fastapi.responses import FileResponse, HTMLResponse
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
PROOF_S = 10.0
"""Time in which a page and the server must have proved to each other that they know the link."""
MAX_REASON = 123
"""Bytes that a close reason may have."""
TOO_MANY = f"{MAX_SCREENS} screens are open, which is the most; close one, then open this one again."
_PAGES = Path(str(files("gswarm_tui.server") / "browser"))
_TEXTUAL_SERVE = Path(str(files("textual_serve") / "static"))
_STATIC = {
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
    "form-action 'none'"
}

_LOG = logging.getLogger(__name__)


class Permission(Enum):
    """Permission of a screen in a browser: to change the recording, or only to watch."""

    WATCH = "watch"
    CONTROL = "control"


class BrowserAccess:
    """Keys that prove the links of one recording at one address, of which each page holds one.

    A key is a keyed hash of a link's token, so it neither opens the web API nor a server at another address.
    """

    def __init__(self, tokens: Tokens, address: str) -> None:
        self.address = address
        links = {Permission.WATCH: tokens.watch, Permission.CONTROL: tokens.control}
        self.keys = {each: _sign(token, f"gswarm-tui web {address}") for each, token in links.items()}

    def proofs(self, side: str, page_nonce: str, nonce: str) -> dict[Permission, str]:
        """Return what a ``side``, server or page, sends to prove that it has the key of each permission."""
        return {each: _sign(key, f"{side} {page_nonce} {nonce}") for each, key in self.keys.items()}


def _sign(key: str, text: str) -> str:
    return hmac.digest(key.encode(), text.encode(), "sha256").hex()


class WebServer:
    """Server of one recording's screens; ``words`` start a viewer of it."""

    def __init__(
        self, access: BrowserAccess, words: Sequence[str], title: str, settings: ServerSettings
    ) -> None:
        self._access = access
        self._words = words
        self._title = title
        self._screens: set[WebSocket] = set()
        page = (_PAGES / "screen.html").read_text(encoding="utf-8")
        self._page = Template(page).substitute(address=html.escape(access.address))
        router = APIRouter()
        router.add_api_route("/", self._send_page, response_class=HTMLResponse)
        router.add_api_route("/static/{name}", self._send_file, response_class=FileResponse)
        router.add_api_websocket_route("/ws", self._open_screen)
        self._guard = Guard(build_app(router), None, settings.origins)
        self._server = HttpServer(self._guard, settings)

    async def run(self, listening: socket.socket) -> None:
        """Serve on a socket that listens until ``end`` or ``close`` is called."""
        await self._server.serve_at(listening)

    def end(self) -> None:
        """Close all connections; the pages try to reconnect."""
        self._server.end()

    async def close(self, why: str) -> None:
        """Close all screens and connections; the pages show ``why``."""
        closing = [page.close(OVER, why) for page in self._screens]
        await asyncio.gather(*closing, return_exceptions=True)
        self.end()

    # Pages

    async def _send_page(self) -> HTMLResponse:
        return HTMLResponse(self._page, headers={**_PAGE_HEADERS, "Cache-Control": "no-cache"})

    async def _send_file(self, name: str) -> FileResponse:
        if (path := _STATIC.get(name)) is None:
            raise HTTPException(404)
        return FileResponse(path, headers={"Cache-Control": "no-cache"})

    # Screens

    async def _open_screen(self, page: WebSocket) -> None:
        """Run a viewer for as long as its page is open."""
        await page.accept()
        if (permission := await self._check_proof(page)) is None:
            with suppress(RuntimeError, WebSocketDisconnect):  # the page has closed it
                await page.close(OVER)
            return
        self._guard.admit(page.scope)
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

    async def _check_proof(self, page: WebSocket) -> Permission | None:
        """Prove to a page that this server has its key; return what the page's own proof permits."""
        try:
            async with asyncio.timeout(PROOF_S):
                nonces = await page.receive_text(), secrets.token_hex(32)
                await page.send_json([nonces[1], *self._access.proofs("server", *nonces).values()])
                given = (await page.receive_text()).encode()
                expected = self._access.proofs("page", *nonces).items()
                for permission, proof in expected:
                    if hmac.compare_digest(given, proof.encode()):
                        await page.send_text(self._title)
                        return permission
        # A message that isn't text has no key "text".
        except (KeyError, RuntimeError, TimeoutError, WebSocketDisconnect):
            pass
        return None


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
