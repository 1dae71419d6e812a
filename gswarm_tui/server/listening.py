"""Checks before a server starts: the extra, its TLS files, the port."""

from __future__ import annotations

import errno
import ipaddress
import socket
import ssl
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from gswarm_tui.common.errors import UserError
from gswarm_tui.options.server_options import ServerSettings

_BACKLOG = 128
MAX_STRANGERS, MAX_OF_ADDRESS = 64, 16
"""Connections that no token or page has authenticated: at once, and of one address other than loopback."""
WRITE_S = 30.0
"""A connection ends when its client has taken nothing of what waits for it for this time."""


def check_settings(
    settings: ServerSettings, option: str = "--http", libraries: tuple[str, ...] = ("fastapi", "uvicorn")
) -> None:
    """Refuse settings that are unsafe or can't work; ``option`` gave the address. Raises UserError."""
    for library in libraries:
        if find_spec(library) is None:
            raise UserError(
                f"the server needs {library}; add the extra [server] from where gswarm-tui was installed, as "
                "from its checkout: pip install '.[server]'"
            )
    if settings.tls_cert is not None or settings.tls_key is not None:
        _check_tls(settings)
    if not _is_loopback(settings.host) and not settings.behind_proxy:
        if not settings.public:
            raise UserError(
                f"{option} {settings.host} can be reached from other machines; add --http-public with "
                "--http-tls-cert and --http-tls-key, or --http-behind-proxy, or listen on 127.0.0.1."
            )
        if settings.tls_cert is None:
            raise UserError("--http-public needs --http-tls-cert and --http-tls-key.")


def _check_tls(settings: ServerSettings) -> None:
    """Refuse TLS files that can't be used. Raises UserError."""
    cert, key = settings.tls_cert, settings.tls_key
    if cert is None or key is None:
        raise UserError("--http-tls-cert and --http-tls-key belong together; add the other one.")
    try:
        # A key with a passphrase is refused here: nobody could type it when the server restarts.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except (OSError, ValueError) as error:
        raise UserError(
            f"the TLS files {cert} and {key} can't be used ({error}); they must be a certificate and its own "
            "key in PEM, without a passphrase."
        ) from None


def listen(settings: ServerSettings, option: str = "--http") -> socket.socket:
    """Return a socket that listens at the address. Raises UserError if it is taken, or not this machine's."""
    where = f"{settings.host}:{settings.port}"
    try:
        family, *_, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(
                f"{option} {where}: another program uses this port; choose another one."
            ) from None
        raise UserError(f"{option} {where}: {error.strerror or error}.") from None
    listening.setblocking(False)
    # Linux ends a connection by this also if its client keeps it alive and reads nothing (man 7 tcp).
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(WRITE_S * 1000))
    return listening


Strangers = dict[tuple[str, int], socket.socket]
"""Connections that aren't authenticated, oldest first, by the client's address and port."""


class AcceptingSocket(socket.socket):
    """Listening socket that closes the oldest connections that aren't authenticated if there are too many."""

    def __init__(self, listening: socket.socket, strangers: Strangers, *, by_address: bool) -> None:
        super().__init__(fileno=listening.detach())
        self._strangers = strangers
        self._by_address = by_address

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection; it counts as a stranger's until it is authenticated."""
        connection, address = super().accept()
        for client in [each for each, old in self._strangers.items() if old.fileno() < 0]:
            del self._strangers[client]
        self._strangers[address[:2]] = connection
        clients = list(self._strangers)
        excess = clients[:-MAX_STRANGERS]
        if self._by_address and not _is_loopback(address[0]):
            excess += [each for each in clients if each[0] == address[0]][:-MAX_OF_ADDRESS]
        for client in excess:
            if old := self._strangers.pop(client, None):
                # asyncio owns the socket, notices its end and closes it.
                with suppress(OSError):
                    old.shutdown(socket.SHUT_RDWR)
        return connection, address


def url_of(settings: ServerSettings, listening: socket.socket) -> str:
    """Return the address of a listening server, as a URL."""
    port = listening.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{settings.scheme}://{host}:{port}"


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
