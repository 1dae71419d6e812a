"""Checks before an HTTP server starts: the extra, its TLS files, the port."""

from __future__ import annotations

import errno
import ipaddress
import resource
import socket
import ssl
from importlib.util import find_spec

from gswarm_tui.common.errors import UserError
from gswarm_tui.options.server_options import ServerSettings

INSTALL = "pip install 'gswarm-tui[server]'"
_BACKLOG = 128
_MOST_FILES = 65536


def check_settings(
    settings: ServerSettings, option: str = "--http", libraries: tuple[str, ...] = ("fastapi", "uvicorn")
) -> None:
    """Refuse settings that are unsafe or can't work; ``option`` gave the address. Raises UserError."""
    for library in libraries:
        if find_spec(library) is None:
            raise UserError(f"the server needs {library}; install it with {INSTALL}.")
    if settings.tls_cert is not None or settings.tls_key is not None:
        load_tls(settings)
    if not _is_loopback(settings.host) and not settings.behind_proxy:
        if not settings.public:
            raise UserError(
                f"{option} {settings.host} can be reached from other machines; add --http-public with "
                "--http-tls-cert and --http-tls-key, or --http-behind-proxy, or listen on 127.0.0.1."
            )
        if settings.tls_cert is None:
            raise UserError("--http-public needs --http-tls-cert and --http-tls-key.")


def load_tls(settings: ServerSettings) -> ssl.SSLContext:
    """Return the context made of the TLS files. Raises UserError."""
    cert, key = settings.tls_cert, settings.tls_key
    if cert is None or key is None:
        raise UserError("--http-tls-cert and --http-tls-key belong together; add the other one.")
    for option, path in (("--http-tls-cert", cert), ("--http-tls-key", key)):
        try:
            path.open("rb").close()
        except OSError as error:
            raise UserError(f"{option}: {path} can't be read: {error.strerror}.") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # A key with a passphrase is refused here: nobody could type it when the server restarts.
        context.load_cert_chain(str(cert), str(key), password=_no_passphrase)
    except (OSError, ValueError) as error:
        raise UserError(f"the TLS files {cert} and {key} can't be used: {_tls_reason(error)}.") from None
    return context


def _tls_reason(error: OSError | ValueError) -> str:
    """Return in words why OpenSSL refused a certificate or its key; its own texts name C files."""
    if not isinstance(error, ssl.SSLError):
        return str(error)
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key isn't the certificate's"
    if not error.reason or "PEM" in error.reason:
        return "one of them isn't a certificate or key in PEM"
    return error.reason.replace("_", " ").lower()


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase")


def listen(settings: ServerSettings, option: str = "--http") -> socket.socket:
    """Return a socket that listens at the address. Raises UserError if it is taken, or not this machine's."""
    where = f"{settings.host}:{settings.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(_BACKLOG)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(
                f"{option} {where}: another program uses this port; choose another one."
            ) from None
        raise UserError(f"{option} {where}: {error.strerror or error}.") from None
    listening.setblocking(False)
    return listening


def allow_many_connections() -> None:
    """Raise the limit of open files: TLS handshakes that strangers don't finish take many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(_MOST_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def url_of(settings: ServerSettings, listening: socket.socket) -> str:
    """Return the address of a listening server, as a URL."""
    port = listening.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{settings.scheme}://{host}:{port}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
