"""Web server of ``gswarm-tui web``: each page gets a viewer of its own, drawn by textual-serve's script.

textual-serve's own server has no access control, so this one serves its scripts and fonts behind checks of
host, origin and cookie. docs/decisions/016-browser.md has the attacks and the reasons.
"""

from __future__ import annotations

import asyncio
import hmac
import html
import json
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from importlib.resources import files
from pathlib import Path
from string import Template

from aiohttp import WSCloseCode, WSMessage, WSMsgType, web

from gswarm_tui.server.guard import FOREIGN_HOST, FOREIGN_ORIGIN, host_of, is_address, own_hosts
from gswarm_tui.server.listening import allow_many_connections
from gswarm_tui.server.screen_process import ScreenProcess
from gswarm_tui.server.tokens import Tokens

MAX_SCREENS = 8
"""Screens that are open at once; each is a process of some 80 MB."""
MAX_CONNECTIONS = 64
FIRST_REQUEST_S = 10.0
"""A connection without a request is closed after this time."""
KEEP_ALIVE_S = 15.0
HEARTBEAT_S = 15.0
"""A browser that doesn't answer a ping in half this time is disconnected."""
MAX_MESSAGE = 64 * 1024
"""Longest message of a browser: pasted text."""
MAX_TOKEN = 256
REFUSED, OVER = 4000, 4001
"""Close codes of a connection whose reason is a sentence that the page shows; ``OVER``: for good."""
MAX_REASON = 123
"""Bytes that a close reason may have."""
NEEDS_ORIGIN = ("/enter", "/ws")
"""Paths to which browsers always send an Origin."""
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
_HEADERS = {
    # xterm.js writes its styles into the page.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "font-src 'self'; img-src 'self'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
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

    def of_cookie(self, cookie: str) -> Permission | None:
        """Return what a cookie permits, None for a wrong one."""
        return _find(cookie, self.cookies)


def _find(given: str, known: Mapping[Permission, str]) -> Permission | None:
    """Return the permission with this secret, compared in constant time; None without one."""
    matches = (each for each, secret in known.items() if hmac.compare_digest(given.encode(), secret.encode()))
    return next(matches, None)


class WebServer:
    """Server of one recording's screens; ``words`` start a viewer of it.

    ``origins`` are other origins by which a proxy makes this server known.
    """

    def __init__(
        self, access: BrowserAccess, words: Sequence[str], title: str, origins: Sequence[str] = ()
    ) -> None:
        self._access = access
        self._words = words
        self._origins = frozenset(origins)
        self._hosts = own_hosts(origins)
        self._screens: set[web.WebSocketResponse] = set()
        self._without_request: dict[web.RequestHandler, asyncio.TimerHandle] = {}
        self._server: asyncio.Server | None = None
        page = (_PAGES / "screen.html").read_text(encoding="utf-8")
        self._screen_page = Template(page).substitute(title=html.escape(title))
        app = web.Application(middlewares=[self._check], client_max_size=MAX_TOKEN)
        app.add_routes(
            [
                web.get("/", self._send_enter_page),
                web.post("/enter", self._enter),
                web.get("/screen", self._send_screen_page),
                web.get("/ws", self._open_screen),
                web.get("/static/{name}", self._send_file),
            ]
        )
        app.on_response_prepare.append(_add_headers)
        app.on_shutdown.append(self._close_remaining)
        self._runner = web.AppRunner(app, access_log=None, keepalive_timeout=KEEP_ALIVE_S)

    async def start(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Serve on a socket that listens."""
        logging.getLogger("aiohttp").setLevel(logging.CRITICAL)  # strangers could fill the log with errors
        allow_many_connections()
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        handshake_s = None if tls is None else FIRST_REQUEST_S
        self._server = await loop.create_server(
            self._protocol, sock=listening, ssl=tls, ssl_handshake_timeout=handshake_s
        )

    async def close(self, why: str = "") -> None:
        """Close all screens and connections; the pages show ``why``, or else try to reconnect."""
        if self._server is not None:
            self._server.close()
        if why:
            await self._close_screens(OVER, why)
        await self._runner.cleanup()

    def _protocol(self) -> asyncio.Protocol:
        """Return what handles the next connection.

        If there are too many, the one that has waited longest for its request makes room, else the new one is
        refused.
        """
        server = self._runner.server
        if server is None or len(server.connections) >= MAX_CONNECTIONS:
            if server is None or not self._without_request:
                return _Refusal()
            oldest, timer = next(iter(self._without_request.items()))
            timer.cancel()
            self._close_idle(oldest)
        connection = server()
        self._without_request[connection] = asyncio.get_running_loop().call_later(
            FIRST_REQUEST_S, self._close_idle, connection
        )
        return connection

    def _close_idle(self, connection: web.RequestHandler) -> None:
        del self._without_request[connection]
        connection.force_close()

    @web.middleware
    async def _check(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Refuse a request with a foreign host or of a foreign page."""
        if (timer := self._without_request.pop(request.protocol, None)) is not None:
            timer.cancel()
        host, origin = request.headers.get("Host", ""), request.headers.get("Origin", "")
        name = host_of(host)
        if name is None or not (name in self._hosts or is_address(name)):
            raise web.HTTPMisdirectedRequest(text=FOREIGN_HOST)
        own = {f"http://{host}", f"https://{host}"} | self._origins  # a proxy may add TLS
        if (origin or request.path in NEEDS_ORIGIN) and origin not in own:
            raise web.HTTPForbidden(text=FOREIGN_ORIGIN)
        try:
            return await handler(request)
        except (web.HTTPException, OSError):  # an answer, or the browser has gone
            raise
        except Exception:
            _LOG.exception("a request failed")
            raise web.HTTPInternalServerError(text="The server failed to answer; see its log.") from None

    def _permission(self, request: web.Request) -> Permission | None:
        return self._access.of_cookie(request.cookies.get(self._access.cookie_name, ""))

    # Pages

    async def _send_enter_page(self, _request: web.Request) -> web.StreamResponse:
        return web.FileResponse(_PAGES / "enter.html")

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        """Set the cookie for a token; without a token, check the cookie that there is."""
        try:
            async with asyncio.timeout(FIRST_REQUEST_S):
                token = (await request.read()).decode("ascii", "replace")
        except (TimeoutError, web.RequestPayloadError):
            raise web.HTTPBadRequest(text=WRONG_LINK) from None
        except web.HTTPRequestEntityTooLarge as refusal:
            refusal.text = WRONG_LINK
            raise
        permission = self._access.of_token(token) if token else self._permission(request)
        if permission is None:
            raise web.HTTPForbidden(text=WRONG_LINK if token else NO_LINK)
        response = web.Response(status=204)
        response.set_cookie(
            self._access.cookie_name,
            self._access.cookies[permission],
            httponly=True,
            samesite="Strict",
            secure=request.headers["Origin"].startswith("https:"),
        )
        return response

    async def _send_screen_page(self, request: web.Request) -> web.StreamResponse:
        if self._permission(request) is None:
            raise web.HTTPSeeOther("./")
        return web.Response(text=self._screen_page, content_type="text/html")

    async def _send_file(self, request: web.Request) -> web.StreamResponse:
        if (path := _STATIC.get(request.match_info["name"])) is None:
            raise web.HTTPNotFound
        return web.FileResponse(path)

    # Screens

    async def _open_screen(self, request: web.Request) -> web.StreamResponse:
        """Run a viewer for as long as its page is open."""
        if (permission := self._permission(request)) is None:
            raise web.HTTPForbidden(text=NO_LINK)
        columns, rows = (_number(request.query.get(name, "")) for name in ("width", "height"))
        page = web.WebSocketResponse(heartbeat=HEARTBEAT_S, max_msg_size=MAX_MESSAGE)
        await page.prepare(request)
        if len(self._screens) >= MAX_SCREENS:
            await page.close(code=REFUSED, message=TOO_MANY.encode())
            return page
        self._screens.add(page)
        try:
            read_only = ("--read-only",) * (permission is Permission.WATCH)
            process = await ScreenProcess.start([*self._words, *read_only], columns, rows)
            await _show(process, page)
        finally:
            self._screens.discard(page)
        return page

    async def _close_remaining(self, _app: web.Application) -> None:
        await self._close_screens(WSCloseCode.GOING_AWAY, "")

    async def _close_screens(self, code: int, why: str) -> None:
        closing = [page.close(code=code, message=why.encode()) for page in self._screens]
        await asyncio.gather(*closing, return_exceptions=True)


class _Refusal(asyncio.Protocol):
    """Connection that is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


async def _show(process: ScreenProcess, page: web.WebSocketResponse) -> None:
    """Join a screen's process to a page until one of them ends."""
    drawing = asyncio.create_task(_draw(process, page))
    try:
        async for message in page:
            await _take(process, message)
    except (OSError, ValueError, LookupError, TypeError):
        # The process has ended, or the page sent what textual-serve's script doesn't.
        _LOG.debug("a screen's connection failed", exc_info=True)
    finally:
        drawing.cancel()
        await asyncio.wait({drawing})
        await process.end()
        await page.close()


async def _draw(process: ScreenProcess, page: web.WebSocketResponse) -> None:
    """Send what the process draws; at its end, close the connection with the reason."""
    with suppress(OSError):  # the browser has gone
        async for data in process.output():
            await page.send_bytes(data)
        if why := await process.end():
            reason = why.encode()[:MAX_REASON].decode(errors="ignore")
            await page.close(code=REFUSED, message=reason.encode())
        else:
            await page.close()


async def _take(process: ScreenProcess, message: WSMessage) -> None:
    """Pass on a message of textual-serve's script. Raises OSError, ValueError, LookupError, TypeError."""
    if message.type is not WSMsgType.TEXT:
        return
    kind, *values = json.loads(message.data)
    match kind, values:
        case "stdin", [str(text)]:
            await process.type(text)
        case "resize", [{"width": int(columns), "height": int(rows)}]:
            await process.resize(columns, rows)
        case "focus" | "blur", _:
            await process.focus(gained=kind == "focus")
        case _:  # "ping", which measures nothing that is shown
            pass


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)
    response.headers["Server"] = "gswarm-tui"
    response.headers["Cache-Control"] = "no-cache" if isinstance(response, web.FileResponse) else "no-store"


def _number(text: str) -> int:
    """Return a number of cells, 0 for none."""
    return int(text) if text.isdecimal() and len(text) < 5 else 0
