"""Guard in front of the HTTP server's application: who may call it, from which pages, how much and how often.

It runs before anything else sees a request, and reads its whole body. The order of its checks: host, origin,
token, rate, size. docs/decisions/015-http-server.md has the attacks that each one stops.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gswarm_tui.server.tokens import Tokens, are_replaced

MAX_BODY = 1024 * 1024
BODY_S = 10.0
"""A request's body has to arrive within this time."""
FOREIGN_HOST = (
    "This server doesn't have the host name of the request; use localhost, its IP address, or a name that "
    "--http-origin allows."
)
FOREIGN_ORIGIN = "Web pages of this origin may not use this server; allow it with --http-origin."
RATE, BURST = 100.0, 200.0
"""Requests per second on average, and at once, of each token."""
_PREFLIGHT_HEADERS = {
    "Access-Control-Allow-Methods": "GET, HEAD, POST, PUT, PATCH, DELETE",
    "Access-Control-Allow-Headers": "Authorization, Content-Type",
    "Access-Control-Max-Age": "600",
}
_SECURITY_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Vary": "Origin",
}


class RefusedRequestError(Exception):
    """Raised for a request that is refused; the message is a sentence."""

    def __init__(self, status: int, why: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(why)
        self.status = status
        self.headers = headers or {}


class Guard:
    """ASGI middleware that lets only permitted requests through to ``app``.

    ``origins`` are those of other web pages that may call it. Their hosts may also name this server, as
    behind a proxy.
    """

    def __init__(
        self,
        app: ASGIApp,
        tokens: Tokens,
        origins: Iterable[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._origins = frozenset(origins)
        self._hosts = own_hosts(self._origins)
        self._limits = {"control": _RateLimit(clock), "scrape": _RateLimit(clock)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            return
        allowed_origin = ""

        async def sending(message: Message) -> None:
            """Send a part of an answer, with the headers that all answers have."""
            if message["type"] == "http.response.start":
                answered = MutableHeaders(scope=message)
                answered.update(_SECURITY_HEADERS)
                if allowed_origin:
                    answered["Access-Control-Allow-Origin"] = allowed_origin
                    answered["Access-Control-Expose-Headers"] = "Retry-After"
            await send(message)

        try:
            headers = _read_headers(scope["headers"])
            self._check_host(headers)
            allowed_origin = self._check_origin(scope, headers)
            if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
                await Response(status_code=204, headers=_PREFLIGHT_HEADERS)(scope, receive, sending)
                return
            self._check_token(scope, headers)
            body = await _read_body(headers, receive)
        except RefusedRequestError as refusal:
            # Its connection is closed, as the request may not have been read to the end.
            answer = JSONResponse(
                {"detail": str(refusal)}, refusal.status, {"Connection": "close", **refusal.headers}
            )
            await answer(scope, receive, sending)
            return
        await self._app(scope, _replay(body, receive), sending)

    def _check_host(self, headers: dict[bytes, bytes]) -> None:
        """Refuse a foreign host name, by which a web page could reach this machine (DNS rebinding)."""
        host = host_of(headers.get(b"host", b"").decode("latin-1"))
        if host is None:
            raise RefusedRequestError(400, "The Host header is missing or invalid.")
        if host not in self._hosts and not is_address(host):
            raise RefusedRequestError(421, FOREIGN_HOST)

    def _check_origin(self, scope: Scope, headers: dict[bytes, bytes]) -> str:
        """Return the origin that may read the answer; empty without one. Refuses a foreign page's request."""
        origin = headers.get(b"origin", b"").decode("latin-1")
        if not origin:
            return ""
        own = f"{scope['scheme']}://{headers[b'host'].decode('latin-1')}"
        if origin in self._origins or origin == own:
            return origin
        raise RefusedRequestError(403, FOREIGN_ORIGIN)

    def _check_token(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        token = given.strip() if scheme.lower() == b"bearer" else b""
        is_control = hmac.compare_digest(token, self._tokens.control.encode())
        is_scrape = hmac.compare_digest(token, self._tokens.scrape.encode())
        if not is_control and not is_scrape:
            raise RefusedRequestError(
                401,
                "This server needs the header Authorization: Bearer TOKEN, with the token of the file that "
                "gswarm-tui printed at the start.",
                {"WWW-Authenticate": "Bearer"},
            )
        if self._tokens.uid and are_replaced(self._tokens):
            raise RefusedRequestError(
                401,
                "The tokens of this recording were removed; restart the server for new ones.",
                {"WWW-Authenticate": "Bearer"},
            )
        if not is_control and (scope["method"], scope["path"]) != ("GET", "/metrics"):
            raise RefusedRequestError(403, "The scrape token can only read /metrics; use the control token.")
        if wait_s := self._limits["control" if is_control else "scrape"].take():
            raise RefusedRequestError(
                429,
                f"There were more than {RATE:.0f} requests per second; slow down.",
                {"Retry-After": str(max(1, round(wait_s)))},
            )


class _RateLimit:
    """Token bucket: ``BURST`` requests at once, refilled with ``RATE`` per second."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left, self._at = BURST, clock()

    def take(self) -> float:
        """Count a request; return 0, or the seconds until one is allowed again."""
        now = self._clock()
        self._left = min(BURST, self._left + (now - self._at) * RATE)
        self._at = now
        if self._left < 1:
            return (1 - self._left) / RATE
        self._left -= 1
        return 0.0


def _read_headers(pairs: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the headers by name. Refuses those that are ambiguous when repeated."""
    headers: dict[bytes, bytes] = {}
    for name, value in pairs:
        if name in headers and name in (b"host", b"origin", b"authorization", b"content-length"):
            raise RefusedRequestError(400, f"The header {name.decode('latin-1').title()} is repeated.")
        headers[name] = value
    if b"content-length" in headers and b"transfer-encoding" in headers:
        # A proxy in front might see another end of the body, and what follows as another request.
        raise RefusedRequestError(400, "The body has both a length and a transfer encoding.")
    return headers


def own_hosts(origins: Iterable[str]) -> frozenset[str]:
    """Return the names that this machine goes by, and those in the origins, as behind a proxy."""
    named = {host for origin in origins if (host := urlsplit(origin).hostname)}
    return frozenset({"localhost", socket.gethostname().lower(), socket.getfqdn().lower()} | named)


def host_of(text: str) -> str | None:
    """Return the host of a Host header without its port, in small letters; None for an invalid one."""
    if not text or any(sign in text for sign in "/@?#\\ ,"):
        return None
    try:
        parts = urlsplit(f"//{text}")
        _ = parts.port  # raises for an invalid one
    except ValueError:
        return None
    return parts.hostname.rstrip(".") if parts.hostname else None


def is_address(host: str) -> bool:
    """Return whether a host is an IP address, which no name server can redirect."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def _read_body(headers: dict[bytes, bytes], receive: Receive) -> bytes:
    """Return the whole body. Refuses one that is too long or too slow."""
    declared = int(headers.get(b"content-length", b"0"))
    too_long = RefusedRequestError(413, f"The body is longer than {MAX_BODY // 1024**2} MiB.")
    if declared > MAX_BODY and headers.get(b"expect", b"").lower() == b"100-continue":
        raise too_long  # the client waits for this before it sends anything
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise RefusedRequestError(400, "The request ended before its body.")
                size += len(message.get("body", b""))
                # A body that is too long is read to its end and dropped, so that the client reads the answer.
                if max(size, declared) <= MAX_BODY:
                    parts.append(message.get("body", b""))
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        if max(size, declared) > MAX_BODY:
            raise too_long from None
        raise RefusedRequestError(408, f"The body didn't arrive within {BODY_S:.0f} s.") from None
    if max(size, declared) > MAX_BODY:
        raise too_long
    return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that gives the body once, and then waits for the end of the connection."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return waiting.pop() if waiting else await receive()

    return replayed
