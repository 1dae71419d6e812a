"""Options of the HTTP server: addresses, origins, and which of them are safe together."""

from __future__ import annotations

import errno
import select
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from gswarm_tui.common.errors import UserError
from gswarm_tui.options.arguments import UsageError, parse, parse_record
from gswarm_tui.options.server_options import ServerSettings, parse_address, parse_origin
from gswarm_tui.server import listening
from gswarm_tui.server.listening import check_settings, listen, url_of


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("8091", "127.0.0.1", 8091),
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("localhost:8091", "localhost", 8091),
        (":80", "127.0.0.1", 80),
        ("[::1]:8091", "::1", 8091),
        ("0.0.0.0:8091", "0.0.0.0", 8091),
    ],
)
def test_addresses_are_read(text: str, host: str, port: int) -> None:
    assert parse_address(text) == (host, port)


@pytest.mark.parametrize("text", ["", "localhost", "1:2:3", "127.0.0.1:99999", "http://x:1", "[::1]", "x:-1"])
def test_other_texts_are_no_addresses(text: str) -> None:
    with pytest.raises(ValueError, match=r"isn't HOST:PORT, such as 127\.0\.0\.1:8091"):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://dash.example", "https://dash.example"),
        ("https://Dash.Example:443/", "https://dash.example"),
        ("http://localhost:3000", "http://localhost:3000"),
        ("http://[::1]:3000", "http://[::1]:3000"),
    ],
)
def test_origins_are_written_as_browsers_send_them(text: str, origin: str) -> None:
    assert parse_origin(text) == origin


@pytest.mark.parametrize(
    "text",
    ["*", "null", "dash.example", "ftp://x", "https://", "https://x/app", "https://u:p@x", "https://x:y"],
)
def test_other_texts_are_no_origins(text: str) -> None:
    with pytest.raises(ValueError, match="origin"):
        parse_origin(text)


def test_a_server_needs_a_recording() -> None:
    with pytest.raises(UsageError, match="--http serves a recording, but --no-record makes none"):
        parse(["--http", "8091", "--no-record"], {})


def test_without_the_option_there_is_no_server() -> None:
    assert parse([], {}).server is None
    assert parse_record(["--demo"], {})[0].server is None
    assert parse_record(["--demo", "--http", "8091"], {})[0].server == ServerSettings("127.0.0.1", 8091)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_addresses_need_no_tls(host: str) -> None:
    check_settings(ServerSettings(host, 8091))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "login.example"])
def test_addresses_that_other_machines_reach_need_tls_or_a_proxy(host: str) -> None:
    with pytest.raises(UserError, match="can be reached from other machines"):
        check_settings(ServerSettings(host, 8091))
    with pytest.raises(UserError, match="--http-public needs --http-tls-cert and --http-tls-key"):
        check_settings(ServerSettings(host, 8091, public=True))
    check_settings(ServerSettings(host, 8091, behind_proxy=True))


@pytest.mark.parametrize(
    ("path", "problem"),
    [("", "must not be empty"), ("~nobody-here/c.pem", '"~nobody-here/c.pem" names a user without a home')],
)
def test_paths_of_tls_files_that_cannot_be_meant_are_refused(path: str, problem: str) -> None:
    with pytest.raises(UsageError, match=f"^--http-tls-cert: {problem}"):
        parse(["--http", "8091", "--http-tls-cert", path], {})


def test_tls_files_are_checked_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="belong together"):
        check_settings(ServerSettings("127.0.0.1", 8091, tls_cert=tmp_path / "c.pem"))
    cert, key = tmp_path / "c.pem", tmp_path / "k.pem"
    settings = ServerSettings("127.0.0.1", 8091, tls_cert=cert, tls_key=key)
    with pytest.raises(UserError, match=r"^the TLS files .*c\.pem and .*k\.pem can't be used \(.*No such"):
        check_settings(settings)
    cert.write_text("junk")
    key.write_text("junk")
    with pytest.raises(UserError, match=r"they must be a certificate and its own key in PEM, without a pass"):
        check_settings(settings)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"the server needs fastapi; add the extra \[server\] from where "):
        check_settings(ServerSettings("127.0.0.1", 8091))


def test_a_port_in_use_is_named() -> None:
    with listen(ServerSettings("127.0.0.1", 0)) as taken:
        settings = ServerSettings("127.0.0.1", taken.getsockname()[1])
        assert url_of(settings, taken) == f"http://127.0.0.1:{settings.port}"
        with pytest.raises(
            UserError, match=f"--http 127.0.0.1:{settings.port}: another program uses this port"
        ):
            listen(settings)


def test_client_that_reads_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "WRITE_S", 0.2)
    with (
        listen(ServerSettings("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()),
        server.accept()[0] as connection,
    ):
        connection.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                connection.send(bytes(1 << 16))
        ended = select.poll()
        ended.register(connection, select.POLLERR)
        assert ended.poll(20_000)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ETIMEDOUT


def test_flags_set_the_server_settings() -> None:
    words = ["--http=8091", "--http-origin=https://a.example/", "--http-origin=http://b:3000"]
    settings = parse([*words, "--http-behind-proxy"], {}).server
    assert settings == ServerSettings(
        "127.0.0.1", 8091, ("https://a.example", "http://b:3000"), behind_proxy=True
    )
