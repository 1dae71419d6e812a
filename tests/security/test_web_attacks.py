"""The HTTP server under attack by other users of the machine, by web pages, and by clients of its owner."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.served import ServedRecorder, served

SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
# Rules that JSON Schema can't express, such as those of SQL, are answered with 400 and a sentence. The stream
# of frames has no end without a limit.
_CONFIG = """
[headers]
Authorization = "Bearer ${GSWARM_TUI_TEST_TOKEN}"
[checks.positive_data_acceptance]
expected-statuses = ["2xx", 400, 401, 403, 404, 409, 429]
[[operations]]
include-path = "/api/v1/frames"
parameters = { "query.limit" = 1 }
"""


def connect(recorder: ServedRecorder) -> socket.socket:
    """Return a connection to the server."""
    return socket.create_connection(("127.0.0.1", recorder.port), timeout=60)


def exchange(recorder: ServedRecorder, request: bytes) -> bytes:
    """Send bytes, and return all that comes back until the server closes the connection."""
    with connect(recorder) as connection:
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b""))
        except ConnectionError:
            return b""


def send_body(recorder: ServedRecorder, size: int, *, token: str, chunked: bool) -> bytes:
    """Send a body of about so many bytes, and return the beginning of the answer; empty if there was none."""
    piece = b" " * 65536
    count = size // len(piece)
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {count * len(piece)}"
    head = f"POST / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n{framing}\r\n\r\n"
    with connect(recorder) as connection:
        with suppress(ConnectionError):
            connection.sendall(head.encode())
            for _ in range(count):
                connection.sendall(b"10000\r\n" + piece + b"\r\n" if chunked else piece)
            if chunked:
                connection.sendall(b"0\r\n\r\n")
        with suppress(ConnectionError):
            return connection.recv(65536)
    return b""


def samples(recorder: ServedRecorder) -> int:
    """Return how many samples of nodes are on disk."""
    answer = recorder.call("POST", "/api/v1/query", {"sql": "SELECT count(*) FROM host_samples"})
    return int(answer.json["rows"][0][0])


def missed_ticks(recorder: ServedRecorder) -> int:
    """Return how many samples the nodes missed or the recorder lost."""
    by_node = "SELECT sum(missed) AS missed, max(seq) - count(*) AS lost FROM host_samples GROUP BY node_id"
    sql = f"SELECT sum(missed + lost) FROM ({by_node})"
    answer = recorder.call("POST", "/api/v1/query", {"sql": sql})
    return int(answer.json["rows"][0][0])


def check_schema(recorder: ServedRecorder, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run schemathesis with all its checks against the server's own OpenAPI document."""
    config = folder / "schemathesis.toml"
    config.write_text(_CONFIG)
    document = f"{recorder.url}/api/v1/openapi.json"
    words = [str(SCHEMATHESIS), f"--config-file={config}", "--no-color", "run", document, "--checks=all"]
    words += ["--rate-limit=80/s", *options]
    return subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "GSWARM_TUI_TEST_TOKEN": recorder.token},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedRecorder]:
    with served(tmp_path_factory.mktemp("served")) as running:
        running.eventually(lambda: samples(running) > 0, "samples on disk")
        yield running


def test_the_token_is_private(recorder: ServedRecorder) -> None:
    for file in (recorder.token_file, recorder.token_file.with_name(recorder.token_file.name + ".scrape")):
        assert file.stat().st_mode & 0o777 == 0o600
        assert len(file.read_text().strip()) >= 43
    assert recorder.token_file.parent.stat().st_mode & 0o777 == 0o700


def test_no_process_shows_the_token(recorder: ServedRecorder) -> None:
    seen = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            shown = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue  # it has ended
        seen += b"gswarm_tui" in shown
        assert recorder.token.encode() not in shown
    assert seen >= 3  # record, its recorder, its server


@pytest.mark.parametrize("path", ["/status", "/", "/metrics", "/api/v1/openapi.json", "/nothing"])
def test_nothing_is_answered_without_the_token(recorder: ServedRecorder, path: str) -> None:
    for token in ("-", recorder.token[:-1], recorder.token.swapcase()):
        assert recorder.call("GET", path, token=token).status == 401


def test_a_page_that_rebinds_its_name_gets_nothing(recorder: ServedRecorder) -> None:
    answer = recorder.call("GET", "/status", headers={"Host": f"evil.example:{recorder.port}"})
    assert answer.status == 421
    answer = recorder.call("POST", "/profiling/stop", {}, headers={"Origin": "http://evil.example"})
    assert answer.status == 403


@pytest.mark.parametrize(
    "request_of",
    [
        pytest.param("GET /status HTTP/1.1\r\n{auth}\r\n", id="no host"),
        pytest.param("GET /status HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n{auth}\r\n", id="two hosts"),
        pytest.param("GET http://evil.example/status HTTP/1.1\r\nHost: localhost\r\n\r\n", id="absolute"),
        pytest.param("GET /status\r\n\r\n", id="no version"),
        pytest.param("GET /status HTTP/9.9\r\nHost: localhost\r\n\r\n", id="unknown version"),
        pytest.param(
            "GET /status HTTP/1.1\r\nHost: localhost\r\nX: " + "x" * 100_000 + "\r\n\r\n", id="long header"
        ),
        pytest.param("GET /" + "x" * 100_000 + " HTTP/1.1\r\nHost: localhost\r\n\r\n", id="long address"),
        pytest.param(
            "GET /status HTTP/1.1\r\nHost: localhost\r\nA: b\r\n c: d\r\nA\0: x\r\n\r\n", id="zero byte"
        ),
        pytest.param(
            "POST / HTTP/1.1\r\nHost: localhost\r\n{auth}Content-Length: 4\r\n"
            "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: localhost\r\n{auth}\r\n",
            id="two framings",
        ),
        pytest.param(
            "POST / HTTP/1.1\r\nHost: localhost\r\n{auth}Content-Length: 2\r\n"
            "Content-Length: 40\r\n\r\n{{}}GET / HTTP/1.1\r\nHost: localhost\r\n{auth}\r\n",
            id="two lengths",
        ),
        pytest.param(
            "POST / HTTP/1.1\r\nHost: localhost\r\n{auth}Transfer-Encoding: chunked\r\n\r\nzz\r\n",
            id="invalid chunk",
        ),
        pytest.param(
            "POST / HTTP/1.1\r\nHost: localhost\r\n{auth}Content-Length: -1\r\n\r\n",
            id="negative length",
        ),
        pytest.param("\x16\x03\x01\x02\x00\x01\x00\x01\xfc", id="TLS"),
    ],
)
def test_ambiguous_requests_are_refused_once(recorder: ServedRecorder, request_of: str) -> None:
    auth = f"Authorization: Bearer {recorder.token}\r\n"
    answer = exchange(recorder, request_of.format(auth=auth).encode("latin-1"))
    assert answer.count(b"HTTP/1.1") <= 1
    assert b"HTTP/1.1 4" in answer or not answer
    assert b"GSwarm" not in answer
    assert recorder.get("/status")["is_profiling"]


def test_long_bodies_are_refused(recorder: ServedRecorder) -> None:
    answer = send_body(recorder, 20_000_000, token=recorder.token, chunked=False)
    assert answer.startswith(b"HTTP/1.1 413"), "the client is told, not cut off"
    assert send_body(recorder, 5_000_000, token=recorder.token, chunked=True)[:13] in (b"HTTP/1.1 411 ", b"")
    assert send_body(recorder, 5_000_000, token="wrong", chunked=False)[:13] in (b"HTTP/1.1 401 ", b"")
    assert recorder.get("/status")["total_gpus"] == 8
    assert missed_ticks(recorder) == 0


def test_a_reader_that_doesnt_read_slows_nothing(recorder: ServedRecorder) -> None:
    with connect(recorder) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        auth = f"Authorization: Bearer {recorder.token}"
        connection.sendall(f"GET /api/v1/frames HTTP/1.1\r\nHost: localhost\r\n{auth}\r\n\r\n".encode())
        frames = recorder.get("/status")["frame_id_counter"]
        recorder.eventually(lambda: recorder.get("/status")["frame_id_counter"] > frames + 2, "samples")
    assert missed_ticks(recorder) == 0


def test_every_answer_is_as_its_openapi_document_says(recorder: ServedRecorder, tmp_path: Path) -> None:
    done = check_schema(recorder, tmp_path, "--max-examples=4", "--generation-deterministic", "--no-shrink")
    assert done.returncode == 0, done.stdout[-6000:]
    assert "26/26" in done.stdout


def test_neither_log_nor_recording_has_the_token(recorder: ServedRecorder) -> None:
    token = recorder.token
    printed = recorder.end()
    assert token not in printed
    assert "Traceback" not in printed
    files = [file for file in recorder.folder.rglob("*") if file.is_file()]
    assert any(file.suffix == ".duckdb" for file in files)
    assert [file for file in files if token.encode() in file.read_bytes()] == []
    assert [file for file in files if b"Traceback" in file.read_bytes()] == [], "strangers can fill the log"
