"""A recorder of simulated nodes with its HTTP server, and a small HTTP client, for the tests."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.terminal import PATIENCE_S, pause

_PRINTED = re.compile(r"HTTP server at (https?)://(\S+):([0-9]+), token in (\S+)")


@dataclass(frozen=True)
class HttpAnswer:
    """Answer to a request."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.text)

    @property
    def detail(self) -> str:
        """The sentence of an error."""
        return str(self.json["detail"])


@dataclass
class ServedRecorder:
    """A running ``gswarm-tui record`` with its HTTP server; ``folder`` is its home and has the recording."""

    process: subprocess.Popen[str]
    folder: Path
    port: int
    token_file: Path
    lines: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The server's address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        """The control token."""
        return self.token_file.read_text().strip()

    @property
    def environ(self) -> dict[str, str]:
        """The environment of commands for this recorder."""
        return environ_of(self.folder)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpAnswer:
        """Send a request with the control token, or another; ``body`` is sent as JSON."""
        token = self.token if token is None else token
        sent = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **(headers or {})}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            content = body if isinstance(body, str | bytes) or body is None else json.dumps(body)
            connection.request(method, path, content, {name: text for name, text in sent.items() if text})
            answer = connection.getresponse()
            return HttpAnswer(answer.status, dict(answer.getheaders()), answer.read().decode())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """Return the JSON at a path."""
        answer = self.call("GET", path)
        assert answer.status == 200, answer
        return answer.json

    def eventually(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds."""
        began = time.monotonic()
        while not holds():
            assert time.monotonic() < began + PATIENCE_S, f"never: {what}"
            assert self.process.poll() is None, f"the recorder ended: {''.join(self.lines)}"
            pause(began)

    def read_until(self, words: str) -> str:
        """Read standard error until a line contains ``words``; return the line."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if words in line:
                return line
        raise AssertionError(f"never printed: {words}\n{''.join(self.lines)}")

    def end(self) -> str:
        """End the recording with a signal; return what was printed."""
        self.process.send_signal(signal.SIGTERM)
        _, rest = self.process.communicate(timeout=PATIENCE_S)
        return "".join(self.lines) + rest


def environ_of(folder: Path) -> dict[str, str]:
    """Return an environment whose home, state and sockets are in a folder."""
    environ = {**os.environ, "HOME": str(folder), "XDG_STATE_HOME": str(folder), "PYTHONUTF8": "1"}
    environ.pop("DUCKDB_JE_MALLOC_CONF", None)  # set in this process by commands that ran in it
    return environ


def _all_measured(latest: Any) -> bool:
    """Return whether all GPUs have rates, which need two samples."""
    gpus = [gpu for client in latest["client_data"].values() for gpu in client["gpus_metrics"]]
    return bool(gpus) and all(gpu["dram_bw_gbps_rx"] is not None for gpu in gpus)


@contextmanager
def served(folder: Path, *words: str, demo: str = "2x4") -> Iterator[ServedRecorder]:
    """Record simulated nodes with an HTTP server, from when all send data; kill it at the end."""
    command = ["record", "--db", "run.duckdb", "--demo", demo, "--http", "127.0.0.1:0", *words]
    process = subprocess.Popen(
        [sys.executable, "-m", "gswarm_tui", *command],
        cwd=folder,
        env=environ_of(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        recorder = ServedRecorder(process, folder, 0, Path())
        awaited = {"HTTP server at", "send data"}  # the server is a process of its own
        while awaited:
            line = recorder.read_until("")
            awaited -= {words for words in awaited if words in line}
            if found := _PRINTED.search(line):
                recorder.port, recorder.token_file = int(found[3]), Path(found[4])
        recorder.eventually(recorder.token_file.exists, "the token's file")
        recorder.eventually(lambda: _all_measured(recorder.get("/metrics/latest")), "samples of all GPUs")
        yield recorder
    finally:
        process.kill()
        process.communicate()
