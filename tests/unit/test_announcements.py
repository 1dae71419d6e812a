"""Findings that are sent to a command or a webhook: what, how often, and what happens if that fails."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gswarm_tui.fleet.events import FindingChanged
from gswarm_tui.run import announcements
from gswarm_tui.run.announcements import Announcements
from tests.unit.store_recording import T0, finding


class Sent:
    """Findings that are sent, and the reasons for which some weren't."""

    def __init__(self, command: str | None = None, webhook: str | None = None) -> None:
        self.failures: list[str] = []
        self._announcements = Announcements(command, webhook, {"job": "4711"}, self.failures.append)

    def send(self, *found: FindingChanged) -> None:
        self._announcements.submit(found)

    def close(self) -> list[str]:
        self._announcements.close()
        return self.failures


class Server:
    """Web server that answers with a status; ``got`` are the paths and messages that it received."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.got: list[tuple[str, Any]] = []
        self.released = threading.Event()


@contextmanager
def server(status: int = 200) -> Iterator[tuple[str, Server]]:
    about = Server(status)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            about.got.append((self.path, json.loads(body)))
            if about.status == 0:
                about.released.wait(30)
            self.send_response(about.status or 200)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{serving.server_port}/hooks/secret", about
        finally:
            about.released.set()
            serving.shutdown()
            thread.join()


def test_a_command_gets_what_costs_something_once_an_hour(tmp_path: Path) -> None:
    out = tmp_path / "out"
    sent = Sent(f"cat >> {shlex.quote(str(out))}; echo >> {shlex.quote(str(out))}")
    sent.send(FindingChanged(T0, finding(1, severity="note")))
    for minutes in (0, 5, 61):  # it stays, and closes and comes back
        sent.send(FindingChanged(T0 + 60 * minutes, finding(2)))
        sent.send(FindingChanged(T0 + 60 * minutes + 1, finding(2, until=T0)))
    sent.send(FindingChanged(T0 + 60, finding(3, kind="hang", severity="fault", node=None, gpu=None)))
    sent.send(FindingChanged(T0 + 60, finding(4, gpu=2, dismissed=True)))
    assert sent.close() == []
    messages = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(one["finding"]["kind"], one["job"]) for one in messages] == [
        ("thermal", "4711"),
        ("thermal", "4711"),
        ("hang", "4711"),
    ]
    assert messages[0]["text"] == f"gswarm-tui: waste: {finding().sentence}"
    assert messages[0]["finding"]["since"] == "2027-01-15T08:00:10.000000Z"


def test_a_webhook_gets_the_same_and_no_redirect_is_followed() -> None:
    with server() as (url, about):
        sent = Sent(webhook=url)
        sent.send(FindingChanged(T0, finding()))
        assert sent.close() == []
    ((path, message),) = about.got
    assert (path, message["finding"]["node"], message["finding"]["gpu"]) == ("/hooks/secret", "n1", 1)
    with server(302) as (url, about):
        sent = Sent(webhook=url)
        sent.send(FindingChanged(T0, finding()))
        assert sent.close() == ["a finding wasn't sent by --finding-webhook: the server answered 302"]
    assert [path for path, _ in about.got] == ["/hooks/secret"]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("exit 3", "the command ended with status 3"),
        ("sleep 600 & wait", "the command took longer than 0.3 s"),
    ],
)
def test_a_failure_is_reported_once(monkeypatch: pytest.MonkeyPatch, command: str, reason: str) -> None:
    monkeypatch.setattr(announcements, "LIMIT_S", 0.3)
    sent = Sent(command)
    sent.send(FindingChanged(T0, finding(gpu=1)))
    sent.send(FindingChanged(T0, finding(gpu=2)))
    assert sent.close() == [f"a finding wasn't sent by --on-finding: {reason}"]


def test_a_server_that_never_answers_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcements, "LIMIT_S", 0.3)
    with server(0) as (url, about):
        sent = Sent(webhook=url)
        sent.send(FindingChanged(T0, finding()))
        (failure,) = sent.close()
        assert "longer than 0.3 s" in failure or "timed out" in failure
        assert "secret" not in failure
        assert len(about.got) == 1
    refused = Sent(webhook="http://127.0.0.1:1/secret")
    refused.send(FindingChanged(T0, finding()))
    (failure,) = refused.close()
    assert failure.endswith("can't be reached: [Errno 111] Connection refused")
