"""Options of an HTTP server: where it listens, and who may use it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from gswarm_tui.common.errors import quote
from gswarm_tui.options import values

DEFAULT_PORT = 8091
DEFAULT = f"127.0.0.1:{DEFAULT_PORT}"
WEB_DEFAULT = "127.0.0.1:8092"
_ADDRESS = re.compile(r"(?:(?P<host>\[[0-9a-fA-F:.]+\]|[^\[\]:]*):)?(?P<port>[0-9]{1,5})")


class ServerSettings(NamedTuple):
    """Where a server listens, and who may use it.

    ``origins`` are the origins of web pages that may call it. ``public`` allows an address other than this
    machine's own loopback, with the TLS files or, ``behind_proxy``, without.
    """

    host: str
    port: int
    origins: tuple[str, ...] = ()
    public: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    behind_proxy: bool = False

    @property
    def scheme(self) -> str:
        """Return https with TLS files, else http."""
        return "https" if self.tls_cert is not None else "http"


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``, ``[IPV6]:PORT`` or ``PORT``. Raises ValueError."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match["port"]) > 65535:
        raise ValueError(f"{quote(text)} isn't HOST:PORT, such as 127.0.0.1:{DEFAULT_PORT}")
    return (match["host"] or "127.0.0.1").strip("[]"), int(match["port"])


def parse_origin(text: str) -> str:
    """Return an origin as browsers send it: scheme, host and port. Raises ValueError."""
    try:
        parts = urlsplit(text.strip())
        port, host = parts.port, parts.hostname
    except ValueError:
        host, parts = None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host or parts.username or parts.query or parts.fragment:
        raise ValueError(f"{quote(text)} isn't an origin, such as https://gpu.example.org")
    if parts.path not in ("", "/"):
        raise ValueError(f"{quote(text)} has a path; an origin ends after host and port")
    host = f"[{host}]" if ":" in host else host
    usual = {"http": 80, "https": 443}[parts.scheme]
    return f"{parts.scheme}://{host}" + ("" if port in (None, usual) else f":{port}")


def add_server_options(parser: argparse.ArgumentParser, *, default: bool = False) -> None:
    """Add the options of an HTTP server; ``default``: there is always one."""
    usual = f"default: {DEFAULT}" if default else f"as {DEFAULT}; default: none"
    address = "--http", DEFAULT if default else None, f"answer HTTP requests here ({usual})"
    _add_options(parser, "HTTP server", address, "web pages of this origin may use it; repeat for several")


def add_web_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the browsers' server."""
    address = "--web", WEB_DEFAULT, f"serve browsers here (default: {WEB_DEFAULT})"
    _add_options(parser, "web server", address, "address by which a reverse proxy makes it known")


def _add_options(
    parser: argparse.ArgumentParser, title: str, address: tuple[str, str | None, str], origin: str
) -> None:
    add = parser.add_argument_group(title).add_argument
    flag, usual, text = address
    at = values.argument(parse_address)
    add(flag, type=at, default=usual, metavar="HOST:PORT", help=text)
    add("--http-origin", type=values.argument(parse_origin), action="append", metavar="URL", help=origin)
    add("--http-public", action="store_true", help="allow an address that other machines reach")
    path = values.argument(values.path)
    add("--http-tls-cert", type=path, metavar="FILE", help="TLS certificate, with its chain, in PEM")
    add("--http-tls-key", type=path, metavar="FILE", help="TLS key in PEM, without a passphrase")
    proxy = "allow such an address without TLS, as a reverse proxy adds it"
    add("--http-behind-proxy", action="store_true", help=proxy)


def server_settings(address: tuple[str, int], given: Mapping[str, Any]) -> ServerSettings:
    """Return the settings that flags give."""
    return ServerSettings(
        *address,
        origins=tuple(given.get("http_origin") or ()),
        public=bool(given.get("http_public")),
        tls_cert=given.get("http_tls_cert"),
        tls_key=given.get("http_tls_key"),
        behind_proxy=bool(given.get("http_behind_proxy")),
    )


def server_words(settings: ServerSettings) -> list[str]:
    """Return the words with which ``gswarm-tui serve`` has these settings."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    files = {"--http-tls-cert": settings.tls_cert, "--http-tls-key": settings.tls_key}
    switches = {"--http-public": settings.public, "--http-behind-proxy": settings.behind_proxy}
    return [
        f"--http={host}:{settings.port}",
        *(f"--http-origin={origin}" for origin in settings.origins),
        *(f"{flag}={file}" for flag, file in files.items() if file is not None),
        *(flag for flag, is_set in switches.items() if is_set),
    ]
