"""A viewer of a recorder that lies, and a viewer that a recorder has to bear."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from gswarm_tui.control.client import RELAY_MAGIC as MAGIC
from gswarm_tui.control.intents import RecorderError
from gswarm_tui.control.messages import VERSION, encode
from gswarm_tui.control.recorder import Recorder, Route
from gswarm_tui.control.routes import SshRoute
from gswarm_tui.fleet.events import LinkChanged, NodeIntroduced, Phase
from gswarm_tui.fleet.replica import fleet_state
from gswarm_tui.fleet.state import Fleet
from tests.integration import test_attached
from tests.integration.test_attached import Recording
from tests.unit.store_recording import hello

environ, recording = test_attached.environ, test_attached.recording

Lie = Callable[[dict[str, Any]], None]


def honest() -> dict[str, Any]:
    """Return the first message to a viewer."""
    fleet, now = Fleet(["n1"]), time.time()
    fleet.apply(NodeIntroduced("n1", now, hello("n1"), False))
    fleet.apply(LinkChanged("n1", now, Phase.LIVE))
    about = {"label": "job 1", "job_id": "1", "path": "/r.duckdb", "uid": "u", "recording_id": 1}
    about |= {"started_at": now}
    counts = ["/r.duckdb", 1, 1, 0, "", False]
    return {"state": {**about, **fleet_state(fleet)}, "now": now, "recorder": counts, "events": []}


class Sent(Route):
    """Way to a recorder that sends these messages."""

    place = "evil"

    def __init__(self, *messages: bytes) -> None:
        self._messages = b"".join(messages)

    async def connect(self, uid: str) -> tuple[asyncio.StreamReader, Any]:
        """Return the messages; what is written is lost."""
        reader = asyncio.StreamReader()
        reader.feed_data(self._messages)
        reader.feed_eof()
        return reader, Nowhere()

    async def why_closed(self) -> str:
        """Return nothing."""
        return ""

    async def close(self) -> None:
        """Leave nothing to close."""


class Nowhere:
    """Writer of which nobody reads."""

    def write(self, data: bytes) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def _set(*path: Any) -> Lie:
    *way, last, value = path

    def lie(message: dict[str, Any]) -> None:
        for part in way:
            message = message[part]
        message[last] = value

    return lie


LIES = {
    "delay that is a text": _set("state", "nodes", 0, "late_ms", "x"),
    "frames that are a list": _set("state", "nodes", 0, "frames", []),
    "interval of no time": _set("state", "interval_ms", 0),
    "session of numbers": _set("state", "sessions", [[1, 2, 3.0, 4]]),
    "logged number": _set("state", "log", [["EventLogged", 1.0, "xid", "error", 5]]),
    "event of numbers": _set("events", [["EventLogged", 1.0, 5, 5, 5]]),
    "event at no time": _set("events", [["FramesLost", "n1", None, 1.0, "life1", 2, ""]]),
    "phase in a list": _set("events", [["LinkChanged", "n1", 1.0, ["live"], "", "", None]]),
    "GPUs of another size": _set("state", "nodes", 0, "gpus", b"1234"),
    "recorder of texts": _set("recorder", ["/r", "1", "1", "0", 3, 0]),
    "time in words": _set("now", "noon"),
    "description of numbers": _set("state", "path", 5),
}


@pytest.mark.parametrize("lie", LIES)
async def test_viewer_reports_what_no_recorder_sends(lie: str) -> None:
    """A wrong value on the screen would end the viewer in a traceback."""
    message = deepcopy(honest())
    LIES[lie](message)
    run = Recorder(Sent(encode(message)))
    with pytest.raises(RecorderError, match="the recorder on evil sent an invalid message"):
        await run._connect()


async def test_viewer_reads_an_honest_recorder() -> None:
    run = Recorder(Sent(encode(honest())))
    await run.start()
    assert list(run.fleet.nodes) == ["n1"]


async def test_line_without_end_on_standard_error_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!{sys.executable}\nimport os\nos.write(1, {MAGIC!r})\nos.write(2, b'x' * 300_000)\n")
    ssh.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    route = SshRoute("evil", "")
    for uid in ("", "u"):
        reader, _ = await route.connect(uid)
        assert await reader.read() == b""
        assert await route.why_closed() == "evil: " + "x" * 400
    await route.close()


async def test_viewer_that_repeats_a_number_loses_its_connection(recording: Recording) -> None:
    """Requests with one number would escape the limit on those that run at once."""
    reader, writer = await recording.route().connect("")
    slow: Mapping[str, Any] = {"want": "query", "sql": "SELECT sum(random()) FROM range(1e9::BIGINT)"}
    request = encode({**slow, "values": [], "number": 1, "version": VERSION})
    writer.write(encode({"want": "view", "version": VERSION}) + 100 * request)
    assert b"a number of its own" in await reader.read()
    writer.close()
    await writer.wait_closed()
    async with test_attached.attached(recording.route()) as run:
        assert list(run.fleet.nodes) == list(test_attached.NODES)
