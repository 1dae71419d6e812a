"""Guard in front of a server's application: who may call it, from which pages, and how much.

It runs before anything else sees a request. The order of its checks: text, host, origin, token, size.
docs/decisions/015-http-server.md has the attacks that each one stops.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import socket
from collections.abc import Iterable
from contextlib import suppress
from urllib.parse import unquote_to_bytes, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gswarm_tui.server.listening import Strangers
from gswarm_tui.server.tokens import Tokens, are_replaced

MAX_BODY = 1024 * 1024
TOO_LONG, TOO_LONG_S = 413, 2.0
"""Status of a longer body, and the time in which the rest of it is read and thrown away."""
FOREIGN_HOST = (
    "This server doesn't have the host name of the request; use localhost, its IP address, or a name that "
    "--http-origin allows."
)
FOREIGN_ORIGIN = "Web pages of this origin may not use this server; allow it with --http-origin."
_PREFLIGHT_HEADERS = {
    "Access-Control-Allow-Methods": "GET, HEAD, POST, PUT, PATCH, DELETE",
    "Access-Control-Allow-Headers": "Authorization, Content-Type",
    "Access-Control-Max-Age": "600",
}
_SECURITY_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Vary": "Origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Headers of answers that have no other value for them."""


class Guard:
    """ASGI middleware that lets only permitted requests through to ``app``.

    With ``tokens``, each request needs one of them. Without, the application itself looks for a login, and
    whatever changes something has to come from its own pages. ``origins`` are those of other web pages that
    may call it. Their hosts may also name this server, as behind a proxy.
    """

    def __init__(self, app: ASGIApp, tokens: Tokens | None, origins: Iterable[str] = ()) -> None:
        self._app = app
        self._tokens = tokens
        self._origins = frozenset(origins)
        named = {host for origin in origins if (host := urlsplit(origin).hostname)}
        self._hosts = {"localhost", socket.gethostname().lower(), socket.getfqdn().lower()} | named
        self.strangers = Strangers()

    def admit(self, scope: Scope) -> None:
        """Keep a request's connection open, as its client has proved that it may use this server."""
        if client := scope.get("client"):
            self.strangers.pop(tuple(client), None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        allowed_origin = ""

        async def sending(message: Message) -> None:
            """Send a part of an answer, with the headers that all answers have."""
            if message["type"].endswith("http.response.start"):
                answered = MutableHeaders(scope=message)
                for name, value in _SECURITY_HEADERS.items():
                    answered.setdefault(name, value)
                if allowed_origin:
                    answered["Access-Control-Allow-Origin"] = allowed_origin
                    answered["Access-Control-Expose-Headers"] = "Retry-After"
            await send(message)

        try:
            headers = {name.lower(): value for name, value in scope["headers"]}
            _check_text(scope, headers)
            self._check_host(headers)
            allowed_origin = self._check_origin(scope, headers)
            is_preflight = scope.get("method") == "OPTIONS" and b"access-control-request-method" in headers
            if is_preflight and allowed_origin:
                await Response(status_code=204, headers=_PREFLIGHT_HEADERS)(scope, receive, sending)
                return
            if self._tokens is not None:
                _check_token(self._tokens, scope, headers)
                self.admit(scope)
            _check_size(headers)
        except HTTPException as refusal:
            # A malformed body closes the connection in this turn of the event loop; then nothing can be sent.
            await asyncio.sleep(0)
            # A connection that is closed with unread bytes is reset, and its client would lose the sentence.
            if refusal.status_code == TOO_LONG:
                with suppress(TimeoutError):
                    async with asyncio.timeout(TOO_LONG_S):
                        while (await receive()).get("more_body"):
                            pass
            # The connection is closed, as perhaps not all of the request's body was read.
            answer = JSONResponse(
                {"detail": refusal.detail},
                refusal.status_code,
                {"Connection": "close", **(refusal.headers or {})},
            )
            await answer(scope, receive, sending)
            return
        await self._app(scope, receive, sending)

    def _check_host(self, headers: dict[bytes, bytes]) -> None:
        """Refuse a foreign host name, by which a web page could reach this machine (DNS rebinding)."""
        host = _host_of(headers.get(b"host", b"").decode("latin-1"))
        if host is None:
            raise HTTPException(400, "The Host header is missing or invalid.")
        try:
            ipaddress.ip_address(host)  # which no name server can redirect
        except ValueError:
            if host not in self._hosts:
                raise HTTPException(421, FOREIGN_HOST) from None

    def _check_origin(self, scope: Scope, headers: dict[bytes, bytes]) -> str:
        """Return the origin that may read the answer; empty without one. Refuses a foreign page's request."""
        origin = headers.get(b"origin", b"").decode("latin-1")
        host = headers[b"host"].decode("latin-1")
        changes = scope["type"] == "websocket" or scope["method"] not in ("GET", "HEAD")
        if not origin and not (changes and self._tokens is None):
            return ""
        if origin in self._origins or origin in (f"http://{host}", f"https://{host}"):  # a proxy may add TLS
            return origin
        raise HTTPException(403, FOREIGN_ORIGIN)


def _check_text(scope: Scope, headers: dict[bytes, bytes]) -> None:
    """Refuse an address or headers that aren't UTF-8, which clients and logs would each read differently."""
    try:
        unquote_to_bytes(scope["raw_path"] + b"?" + scope["query_string"]).decode()
        b"".join(headers.values()).decode()
    except UnicodeDecodeError:
        raise HTTPException(400, "The address and the headers of a request must be UTF-8.") from None


def _check_token(tokens: Tokens, scope: Scope, headers: dict[bytes, bytes]) -> None:
    scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
    token = given.strip() if scheme.lower() == b"bearer" else b""
    is_control = hmac.compare_digest(token, tokens.control.encode())
    is_scrape = hmac.compare_digest(token, tokens.scrape.encode())
    why = ""
    if not is_control and not is_scrape:
        why = (
            "This server needs the header Authorization: Bearer TOKEN, with the token of the file that "
            "gswarm-tui printed at the start."
        )
    elif tokens.uid and are_replaced(tokens):
        why = "The tokens of this recording were removed; restart the server for new ones."
    if why:
        raise HTTPException(401, why, {"WWW-Authenticate": "Bearer"})
    if not is_control and (scope.get("method"), scope["path"]) != ("GET", "/metrics"):
        raise HTTPException(403, "The scrape token can only read /metrics; use the control token.")


def _check_size(headers: dict[bytes, bytes]) -> None:
    """Refuse a body that is too long, or that doesn't say how long it is."""
    if b"transfer-encoding" in headers:
        raise HTTPException(411, "The body must be sent with the header Content-Length, not in chunks.")
    if int(headers.get(b"content-length", b"0")) > MAX_BODY:  # h11 has checked that it is a number
        raise HTTPException(TOO_LONG, f"The body is longer than {MAX_BODY // 1024**2} MiB.")


def _host_of(text: str) -> str | None:
    """Return the host of a Host header without its port, in small letters; None for an invalid one."""
    if not text or any(sign in text for sign in "/@?#\\ ,"):
        return None
    try:
        parts = urlsplit(f"//{text}")
        _ = parts.port  # raises for an invalid one
    except ValueError:
        return None
    return parts.hostname.rstrip(".") if parts.hostname else None
