"""``gswarm-tui web``: a recording's screens in a real browser, and who is let in."""

from __future__ import annotations

import asyncio
import hmac
import os
import re
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from websockets.asyncio.server import ServerConnection, serve
from yarl import URL

from gswarm_tui.options.server_options import ServerSettings
from gswarm_tui.server import listening as server_listening
from gswarm_tui.server import web as server_web
from gswarm_tui.server.tokens import Tokens
from gswarm_tui.server.web import BrowserAccess, WebServer
from tests import served as http_recorder
from tests.chromium import Chromium, chromium, until
from tests.integration.heads import eventually
from tests.integration.test_record import Running, record
from tests.terminal import PATIENCE_S, InTerminal

in_browser = pytest.mark.asyncio(loop_scope="module")

WATCHING, CONTROLLING = "watch-token", "control-token"
TOKENS = Tokens(CONTROLLING, "", WATCHING)
PROXY = "gpu.example.org"
ROOT = Path(__file__).parents[2]
CONTRIB = ROOT / "contrib"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("web")


@pytest.fixture(scope="module")
def recording(folder: Path) -> Iterator[Running]:
    with record(folder, "--demo", "2x2", "--name", "training", "--", "cat") as running:
        running.wait_for("send data")
        yield running


@contextmanager
def other_origin() -> Iterator[str]:
    """Serve an empty page; return its origin."""

    class Empty(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@in_browser
async def test_documented_javascript_works_on_an_allowed_page_only(browser: Chromium, tmp_path: Path) -> None:
    documented = (ROOT / "docs/guide/web-api.md").read_text()
    (script,) = re.findall(r"```javascript\n(.*?)```", documented, re.DOTALL)
    with (
        other_origin() as allowed,
        other_origin() as foreign,
        http_recorder.served(tmp_path, "--http-origin", allowed) as recorder,
    ):
        script = script.replace("http://127.0.0.1:8091", recorder.url)
        script = f"{{const token = '{recorder.token}'; {script}}}"
        page, refused = [await browser.page(private=True) for _ in range(2)]
        for each, origin in ((page, allowed), (refused, foreign)):
            await each.open(origin)
            await each.evaluate(script)
        blocked = "has been blocked by CORS policy"
        await until(lambda: "experiment_1.json" in str(page.messages), lambda: str(page.messages))
        await until(lambda: str(refused.messages).count(blocked) == 2, lambda: str(refused.messages))
        assert blocked not in str(page.messages)
        names = [session["name"] for session in recorder.get("/api/v1/sessions")["sessions"]]
        assert names.count("experiment_1") == 1


class Served:
    """A ``gswarm-tui web`` in a terminal, and its links."""

    def __init__(self, running: InTerminal) -> None:
        self.running = running
        running.wait_for("to control:")
        running.wait_for("/#", PATIENCE_S)
        found = re.findall(r"to (?:watch|control): +(http\S+)", running.screen())
        self.watch, self.control = found

    @property
    def address(self) -> str:
        """The address without a token."""
        return str(self.watch).partition("/#")[0]


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def served(folder: Path, port: int = 0, *words: str) -> Iterator[Served]:
    """Run ``gswarm-tui web`` on the recording in a folder."""
    command = [sys.executable, "-m", "gswarm_tui", "web", "run.duckdb", "--web", f"127.0.0.1:{port}", *words]
    env = {"HOME": str(folder), "XDG_STATE_HOME": str(folder)}
    with InTerminal(command, env=env, folder=folder) as running:
        yield Served(running)


@pytest.fixture(scope="module")
def site(folder: Path, recording: Running) -> Iterator[Served]:
    assert recording.process.poll() is None
    with served(folder) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chromium]:
    rules = f"--host-resolver-rules=MAP {PROXY} 127.0.0.1"
    async with chromium(tmp_path_factory.mktemp("chromium"), rules, "--ignore-certificate-errors") as running:
        yield running


@in_browser
async def test_link_to_watch_shows_the_recording_and_changes_nothing(
    browser: Chromium, site: Served, folder: Path
) -> None:
    page = await browser.page(private=True)
    await page.open(site.watch)
    await page.shows("● attached, read-only")
    assert await page.evaluate("location.href") == f"{site.address}/"
    await page.press("s")
    await page.shows("this screen is read-only")
    # Two blanks tell the node's row from the GPU with the lowest utilisation, in a line above.
    await page.click_text("sim02  ")
    # A key that overtakes the click would open the other node.
    await page.shows("sim02:0  util")
    await page.press("enter")
    await page.shows("sim02  ● live")
    before = page.size
    await page.resize(900, 500)
    await until(lambda: page.size < before, lambda: "never smaller")
    await page.shows("sim02  ● live")
    await page.press("q")
    await page.press("q")
    await page.says("This screen is closed; recording continues.")
    own = (site.address, site.address.replace("http", "ws"))
    assert [each for each in page.requested if not each.startswith(own)] == []
    token = site.watch.partition("#")[2]
    assert [each for each in page.requested if token in each] == []
    assert [each for each in page.messages if "exception" in each] == []


@in_browser
async def test_link_to_control_changes_the_recording_and_survives_a_restarted_recorder(
    browser: Chromium, site: Served, recording: Running
) -> None:
    page, watching = await browser.page(private=True), await browser.page(private=True)
    await page.open(site.control)
    await watching.open(site.watch)
    await page.shows("● attached · rec")
    await watching.shows("● attached, read-only")
    await page.press("s")
    await page.shows("start session")
    for letter in "epoch":
        await page.press(letter)
    await page.press("enter")
    await page.shows("● epoch")
    await watching.shows("● epoch")
    os.kill(recording.recorder(), signal.SIGKILL)
    await page.shows("recorder restarted")
    await watching.shows("recorder restarted")
    await page.shows("● attached · rec")
    assert page.sockets == watching.sockets == 1


@in_browser
async def test_page_reconnects_to_a_restarted_web_server(
    browser: Chromium, recording: Running, folder: Path
) -> None:
    page = await browser.page(private=True)
    with served(folder) as first:
        port = int(first.address.rpartition(":")[2])
        await page.open(first.watch)
        await page.shows("● attached, read-only")
        viewers = children(first.running.pid)
        assert len(viewers) == 1
        for link in (first.watch, first.control):
            token = link.partition("#")[2]
            for pid in (first.running.pid, *viewers):
                for name in ("cmdline", "environ"):
                    assert token not in Path(f"/proc/{pid}/{name}").read_text()
        # The tab keeps its key over a reload, but not while another program could answer a reload.
        await page.send("Page.reload")
        await until(lambda: page.sockets == 2, lambda: "never reloaded")
        await page.shows("● attached, read-only")
        viewers = children(first.running.pid)
        first.running.kill()
    await page.says("Connection lost; reconnecting …")
    eventually(lambda: not Path(f"/proc/{viewers[-1]}").exists(), "the end of the viewer")
    requested = len(page.requested)
    received: list[str | bytes] = []

    async def pretend(connection: ServerConnection) -> None:
        async for message in connection:
            received.append(message)
            await connection.send('["a nonce", "a proof"]')

    async with serve(pretend, "127.0.0.1", port):
        await page.says("The program at this address doesn't know this page's link; reconnecting …")
        assert [len(each) for each in received] == [64] * len(received), "a nonce and nothing else"
        assert {each.partition("?")[0] for each in page.requested[requested:]} == {
            f"ws://127.0.0.1:{port}/ws"
        }
        assert await page.evaluate("sessionStorage.length + document.cookie.length") == 0
    with served(folder, port) as second:
        assert second.watch == first.watch
        before = page.sockets
        await until(lambda: page.sockets > before, lambda: "never reconnected")
        await page.shows("● attached, read-only")
        await page.press("q")
        await page.press("q")
        await page.says("This screen is closed; recording continues.")


class Proxy:
    """A reverse proxy with an example of ``contrib``, run in a folder with a certificate made for it."""

    def __init__(self, name: str, folder: Path, web_port: int, http_port: int) -> None:
        self.folder = folder
        self.port = free_port()
        self._certificate = write_certificate(folder)
        ports = {"127.0.0.1:8092": f"127.0.0.1:{web_port}", "127.0.0.1:8091": f"127.0.0.1:{http_port}"}
        self._command = {"nginx": self._nginx, "caddy": self._caddy}[name](ports)

    def _nginx(self, ports: dict[str, str]) -> list[str]:
        certificate, key = self._certificate
        changes = ports | {
            "listen 443 ssl": f"listen 127.0.0.1:{self.port} ssl",
            f"/etc/ssl/certs/{PROXY}.pem": str(certificate),
            f"/etc/ssl/private/{PROXY}.key": str(key),
        }
        site = replaced((CONTRIB / "nginx" / "gswarm-tui.conf").read_text(), changes)
        (self.folder / "site.conf").write_text(site)
        bodies = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        places = " ".join(f"{each}_temp_path {self.folder}/{each};" for each in bodies)
        (self.folder / "nginx.conf").write_text(
            f"daemon off; master_process off; pid {self.folder}/pid; error_log stderr; events {{}}\n"
            f"http {{ access_log {self.folder}/access.log; {places} include {self.folder}/site.conf; }}"
        )
        program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
        assert program is not None, "this test needs nginx: apt-get install nginx-light"
        return [program, "-e", "stderr", "-p", str(self.folder), "-c", str(self.folder / "nginx.conf")]

    def _caddy(self, ports: dict[str, str]) -> list[str]:
        certificate, key = self._certificate
        site = f"https://{PROXY}:{self.port} {{\n\ttls {certificate} {key}\n\tlog"
        text = replaced((CONTRIB / "caddy" / "Caddyfile").read_text(), ports | {f"\n{PROXY} {{": f"\n{site}"})
        usual = "{\n\tadmin off\n\tauto_https disable_redirects\n}\n"
        (self.folder / "Caddyfile").write_text(usual + text)
        program = shutil.which("caddy")
        assert program is not None, "this test needs caddy: apt-get install caddy"
        return [program, "run", "--config", str(self.folder / "Caddyfile"), "--adapter", "caddyfile"]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run it until it answers, and end it."""
        env = {**os.environ, "HOME": str(self.folder)}
        with (self.folder / "printed").open("wb") as printed:
            process = subprocess.Popen(self._command, env=env, stdout=printed, stderr=printed)
            try:
                eventually(lambda: answers(self.port), "the proxy")
                yield
            finally:
                process.kill()  # Caddy waits for open screens
                process.wait(PATIENCE_S)

    def logged(self) -> str:
        """Return all that it logged."""
        return "".join(
            (self.folder / name).read_text()
            for name in ("access.log", "printed")
            if (self.folder / name).exists()
        )


def replaced(text: str, changes: dict[str, str]) -> str:
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    return text


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for the proxy's name, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, PROXY)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(PROXY)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(Encoding.PEM))
    paths[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return paths


@in_browser
@pytest.mark.parametrize("name", ["nginx", "caddy"])
async def test_example_of_a_reverse_proxy(
    name: str, browser: Chromium, recording: Running, folder: Path, tmp_path: Path
) -> None:
    web_port, http_port = free_port(), free_port()
    proxy = Proxy(name, tmp_path, web_port, http_port)
    origin = f"https://{PROXY}:{proxy.port}"
    words = f"-m gswarm_tui serve run.duckdb --http 127.0.0.1:{http_port} --http-origin {origin}"
    env = {"HOME": str(folder), "XDG_STATE_HOME": str(folder)}
    with (
        served(folder, web_port, "--http-origin", origin) as site,
        InTerminal([sys.executable, *words.split()], env=env, folder=folder) as http,
        proxy.running(),
    ):
        http.wait_for("HTTP server at")
        assert site.watch.startswith(f"{origin}/#")
        page = await browser.page(private=True)
        await page.open(site.watch)
        await page.shows("● attached, read-only")
        token = site.control.partition("#")[2]
        headers = {"Authorization": f"Bearer {token}", "Host": f"{PROXY}:{proxy.port}"}
        address = f"https://127.0.0.1:{proxy.port}/http/api/v1"
        context = ssl.create_default_context(cafile=str(tmp_path / "certificate.pem"))
        async with aiohttp.ClientSession(headers=headers) as client:
            async with client.get(f"{address}/nodes", ssl=context, server_hostname=PROXY) as answer:
                assert [node["node"] for node in (await answer.json())["nodes"]] == ["sim01", "sim02"]
            async with client.get(f"{address}/frames", ssl=context, server_hostname=PROXY) as stream:
                for _ in range(2):
                    async with asyncio.timeout(PATIENCE_S):
                        await stream.content.readuntil(b"\n\n")
    logged = proxy.logged()
    assert "/static/screen.js" in logged
    for secret in (site.watch, site.control):
        assert secret.partition("#")[2] not in logged


FOREIGN = "Web pages of this origin may not use this server"

UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "sentence"),
    [
        ("GET", "/", {"Host": "evil.example"}, 421, "doesn't have the host name"),
        ("GET", "/static/textual.js", {"Host": "evil.example:80"}, 421, "doesn't have the host name"),
        ("GET", "/", {"Origin": "http://evil.example"}, 403, FOREIGN),
        ("GET", "/ws", {"Origin": "null"}, 403, FOREIGN),
        ("GET", "/ws", {"Origin": "http://evil.example"}, 403, FOREIGN),
        ("GET", "/ws", {}, 403, FOREIGN),
        ("GET", "/static/%ff", {}, 400, "must be UTF-8"),
        ("GET", "/static/", {}, 404, ""),
        ("GET", "/static", {}, 404, ""),
        ("GET", "/static/../web.py", {}, 404, ""),
        ("GET", "/static/%2e%2e%2fweb.py", {}, 404, ""),
    ],
)
async def test_request_that_is_refused(
    method: str, path: str, headers: dict[str, str], status: int, sentence: str
) -> None:
    async with serving() as address, aiohttp.ClientSession() as client:
        sent = headers | (UPGRADE if path == "/ws" else {})
        url = URL(address + path, encoded=True)
        async with client.request(method, url, headers=sent, allow_redirects=False) as answer:
            assert answer.status == status
            assert sentence in (await answer.json())["detail"]
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


@asynccontextmanager
async def serving(*words: str) -> AsyncIterator[str]:
    """Serve screens in this process; yield the address."""
    listening = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    settings = ServerSettings("127.0.0.1", 0, origins=(f"http://{PROXY}",))
    server = WebServer(BrowserAccess(TOKENS, address), words, "a <title>", settings)
    running = asyncio.create_task(server.run(listening))
    try:
        yield address
    finally:
        server.end()
        await running


def signed(key: str, text: str) -> str:
    return hmac.digest(key.encode(), text.encode(), "sha256").hex()


@asynccontextmanager
async def screen(address: str, token: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """Open a screen with a link's token, as the page does."""
    key = signed(token, f"gswarm-tui web {address}")
    async with aiohttp.ClientSession(headers={"Origin": address}) as client:
        async with client.get(address) as answer:
            assert f'data-address="{address}"' in await answer.text()
            assert "Set-Cookie" not in answer.headers
        async with client.ws_connect(f"{address}/ws?width=80&height=24") as opened:
            await opened.send_str("a nonce")
            nonce, *proofs = await opened.receive_json()
            assert signed(key, f"server a nonce {nonce}") in proofs
            await opened.send_str(signed(key, f"page a nonce {nonce}"))
            assert (await opened.receive_str()).startswith(("gswarm-tui · ", "a <title>"))
            yield opened


def of_another_address(nonce: str) -> bytes:
    return signed(signed(CONTROLLING, "gswarm-tui web http://127.0.0.1:1"), f"page x {nonce}").encode()


@pytest.mark.parametrize(
    ("kind", "proof"),
    [
        (aiohttp.WSMsgType.TEXT, lambda _: CONTROLLING.encode()),
        (aiohttp.WSMsgType.TEXT, of_another_address),
        (aiohttp.WSMsgType.TEXT, lambda _: b"\xff"),
        (aiohttp.WSMsgType.BINARY, lambda _: b"x"),
    ],
)
async def test_page_without_the_proof_gets_no_screen_and_fills_no_log(
    kind: aiohttp.WSMsgType, proof: Callable[[str], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        serving() as address,
        aiohttp.ClientSession(headers={"Origin": address}) as client,
        client.ws_connect(f"{address}/ws") as opened,
    ):
        await opened.send_str("x")
        nonce, *_ = await opened.receive_json()
        await opened.send_frame(proof(nonce), kind)
        assert (await opened.receive()).data in (server_web.OVER, 1007)
    assert caplog.text == ""


async def test_strangers_who_hold_connections_shut_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_listening, "MAX_STRANGERS", 8)
    monkeypatch.setattr(server_listening, "MAX_OF_ADDRESS", 3)
    monkeypatch.setattr(server_listening, "_is_loopback", lambda host: host != "127.0.0.9")
    async with serving("attach", "nowhere") as address:
        to = ("127.0.0.1", int(address.rpartition(":")[2]))
        async with screen(address, WATCHING) as opened:
            held = [socket.create_connection(to, source_address=("127.0.0.9", 0)) for _ in range(5)]
            await until(
                lambda: [closed(each) for each in held] == [True] * 2 + [False] * 3, lambda: "by address"
            )
            for sent in (b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n") * 10:
                held.append(socket.create_connection(to))
                held[-1].sendall(sent)
            await until(lambda: sum(map(closed, held)) == len(held) - 8, lambda: "in total")
            # The screen that was opened before them goes on until its viewer reports why it can't start.
            assert "nowhere" in str((await opened.receive()).extra)
        for each in held:
            each.close()


def closed(connection: socket.socket) -> bool:
    ended = select.poll()
    ended.register(connection, select.POLLRDHUP)
    return bool(ended.poll(0))


async def test_screens_are_counted_and_garbage_ends_only_their_own_screen(
    recording: Running, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_web, "MAX_SCREENS", 1)
    async with serving("attach", str(folder / "run.duckdb")) as address:
        async with screen(address, WATCHING) as first:
            assert b"\x1b[" in await first.receive_bytes()
            async with screen(address, CONTROLLING) as second:
                closing = await second.receive()
                assert (second.close_code, closing.extra) == (server_web.REFUSED, server_web.TOO_MANY)
            await first.send_str('["resize", {"width": 1000000, "height": -5}]')
            assert b"\x1b[" in await first.receive_bytes()
            await first.send_str("no JSON")
            async for _ in first:
                pass
        async with screen(address, WATCHING) as next_one:
            assert b"\x1b[" in await next_one.receive_bytes()


@in_browser
async def test_page_says_why_a_viewer_ended(browser: Chromium) -> None:
    async with serving("attach", "nowhere") as address:
        page = await browser.page(private=True)
        await page.open(f"{address}/#{WATCHING}")
        await page.says('has the recording, job or file name "nowhere"')
        await page.says("Open again")
        await page.open(f"{address}/#wrong")
        await page.says("This link isn't valid")
        await page.open(f"{address}/")
        await page.says("Open the whole link that gswarm-tui web printed")
        port = address.rpartition(":")[2]
        await page.open(f"http://{PROXY}:{port}/#{WATCHING}")
        await page.says(
            f"run ssh -L {port}:{PROXY}:{port} {PROXY}, then open the link with http://localhost:{port}/"
        )


@contextmanager
def web_command(folder: Path) -> Iterator[tuple[Running, subprocess.Popen[str], list[str]]]:
    """Run ``web`` on a recording, and return both with the lines that name its links."""
    env = {**os.environ, "HOME": str(folder), "XDG_STATE_HOME": str(folder)}
    with record(folder, "--demo", "1x1", "--", "cat") as running:
        running.wait_for("sends data")
        command = [sys.executable, "-m", "gswarm_tui", "web", "run.duckdb", "--web", "127.0.0.1:0"]
        web_server = subprocess.Popen(command, cwd=folder, env=env, stderr=subprocess.PIPE, text=True)
        try:
            assert web_server.stderr is not None
            yield running, web_server, [web_server.stderr.readline() for _ in range(2)]
        finally:
            web_server.kill()
            web_server.communicate()


def test_web_ends_when_the_tokens_are_removed_while_recording_continues(tmp_path: Path) -> None:
    with web_command(tmp_path) as (_, web_server, links):
        assert "to control" in links[1]
        for path in (tmp_path / "gswarm-tui" / "tokens").iterdir():
            path.unlink()
        printed = web_server.communicate(timeout=PATIENCE_S)[1]
        assert printed == "gswarm-tui: the tokens of this recording were removed; recording continues\n"


async def test_web_ends_with_its_recording_and_prints_tokens_only_on_a_terminal(tmp_path: Path) -> None:
    with web_command(tmp_path) as (running, web_server, links):
        tokens = {path: path.read_text().strip() for path in (tmp_path / "gswarm-tui" / "tokens").iterdir()}
        assert len(tokens) == 3
        for path, token in tokens.items():
            assert path.stat().st_mode & 0o777 == 0o600
            assert token not in "".join(links)
            assert len(token) > 40
        found = re.search(
            r"to watch: (http://127.0.0.1:\d+)/#TOKEN, with the token in (\S+\.watch)", links[0]
        )
        assert found is not None
        async with screen(found[1], tokens[Path(found[2])]) as opened:
            assert b"\x1b[" in await opened.receive_bytes()
            assert running.end()[0] == 0
            async for _ in opened:
                pass
            assert opened.close_code == server_web.OVER
        assert web_server.communicate(timeout=PATIENCE_S)[1] == "gswarm-tui: the recording ended\n"
        assert web_server.returncode == 0
    assert list((tmp_path / "gswarm-tui" / "tokens").iterdir()) == []
