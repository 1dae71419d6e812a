"""The socket of a running head: queries, marks, refusals, and cleaning up."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gswarm_agent.folder import SOCKET
from gswarm_tui.commands.recording_choice import find_recording_file, open_source
from gswarm_tui.common.errors import UserError
from gswarm_tui.control import registry
from gswarm_tui.control.client import Head, running_heads
from gswarm_tui.control.intents import (
    ChangeSession,
    Intent,
    RecorderError,
    RefusedError,
    SetMark,
    StartSession,
    StopSession,
    UndoStop,
)
from gswarm_tui.control.messages import (
    LENGTH,
    MAX_REQUEST,
    VERSION,
    MessageError,
    decode,
    encode,
    message_length,
)
from gswarm_tui.control.recorder_source import RecorderSource
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.link.hub import Hub
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.querying.results import QueryError
from gswarm_tui.store.recording.recorder import FileWriter
from tests.tui.client import control_server
from tests.unit.store_recording import INFO, T0, arrived, gpu_row, introduced, query

ROOT = Path(__file__).parents[2]


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """Return an environment with an empty registry of heads."""
    monkeypatch.setattr(registry, "SHARED", str(tmp_path / "shared"))
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return {"XDG_RUNTIME_DIR": str(tmp_path / "run"), "HOME": str(tmp_path)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "live.duckdb"


class RunningHead:
    """A head without a screen: hub, recorder and its socket."""

    def __init__(
        self, path: Path | None, environ: Mapping[str, str], uid: str = "", *, commit_every_s: float = 0.05
    ) -> None:
        self.hub = Hub(Fleet(("n1",)), clock=lambda: T0 + 60)
        self.hub.started_at = T0
        self.recorder: FileWriter | None = None
        if path is not None:
            self.recorder = FileWriter(
                path, replace(INFO, uid=uid), lambda _status: None, commit_every_s=commit_every_s
            )
            self.recorder.open()
            self.hub.sinks.append(self.recorder)
        self.end_requested = asyncio.Event()
        self.control = control_server(
            self.hub, self.recorder, environ, end=lambda _why: self.end_requested.set(), label="job 4711"
        )
        self.closed = False

    async def committed(self, rows: int) -> None:
        assert self.recorder is not None
        async with asyncio.timeout(30):
            while self.recorder.status().rows < rows:
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self.recorder is not None:
            await asyncio.to_thread(self.recorder.close, T0 + 100)
        await self.control.close({})


@pytest.fixture
async def running(path: Path, environ: Mapping[str, str]) -> AsyncIterator[RunningHead]:
    """A head that recorded three frames."""
    running = RunningHead(path, environ)
    await running.control.start()
    assert running.recorder is not None
    running.recorder.submit([introduced(gpus=2)])
    running.recorder.submit([arrived(seq, [gpu_row(util_pct=seq)] * 2) for seq in (1, 2, 3)])
    await running.committed(9)
    yield running
    await running.close()


def only_head(environ: Mapping[str, str]) -> Head:
    (head,) = running_heads(environ)
    return head


def the_socket(environ: Mapping[str, str]) -> Path:
    (address,) = (Path(environ["XDG_RUNTIME_DIR"]) / "gswarm-tui").glob(f"*/{SOCKET}")
    return address


async def run_query(head: Head, sql: str, *values: object) -> list[tuple[Any, ...]]:
    source = RecorderSource.of_head(head, head.path or Path())
    return await asyncio.to_thread(lambda: source.query(sql, *values).rows())


async def test_head_reports_its_recording(
    running: RunningHead, environ: Mapping[str, str], path: Path
) -> None:
    head = await asyncio.to_thread(only_head, environ)
    assert (head.pid, head.path, head.nodes) == (os.getpid(), path, ("n1",))
    link = path.with_name("link.duckdb")
    link.symlink_to(path)
    assert head.records(path)
    assert head.records(link)
    assert not head.records(path.with_name("other.duckdb"))


TYPED = """
SELECT 1::TINYINT, 170141183460469231731687303715884105727::HUGEINT, 1.5::FLOAT, 'nan'::DOUBLE,
       '-inf'::DOUBLE, 12.30::DECIMAL(6, 2), true, NULL, 'ü–\\x00', 'ab'::BLOB,
       DATE '2027-01-15', TIME '10:11:12.5',
       TIMESTAMP '2027-01-15 10:11:12.123456', TIMESTAMPTZ '2027-01-15 10:11:12+02',
       INTERVAL '1 day 2 seconds', [1, NULL], [[1.5::DECIMAL(4, 1)]],
       {'a': 1, 'b': [TIMESTAMP '2027-01-15']},
       MAP {'k': DATE '2027-01-15'},
       '550e8400-e29b-41d4-a716-446655440000'::UUID, 'x'::ENUM('x', 'y'), ?::TIMESTAMP, ?::DOUBLE
"""


async def test_values_keep_their_types(
    running: RunningHead, environ: Mapping[str, str], tmp_path: Path
) -> None:
    given = (datetime(2027, 1, 15, 3), 0.1)  # noqa: DTZ001  # as the database has them
    assert running.recorder is not None
    expected_result = running.recorder.queries().query(TYPED, *given)
    head = await asyncio.to_thread(only_head, environ)
    result = await asyncio.to_thread(RecorderSource.of_head(head, head.path or Path()).query, TYPED, *given)
    assert (result.names, result.types) == (expected_result.names, expected_result.types)
    (row,), (expected,) = await asyncio.to_thread(result.rows), expected_result.rows()
    assert math.isnan(row[3])
    assert math.isnan(expected[3])
    assert [type(value) for value in row] == [type(value) for value in expected]
    assert row[:3] + row[4:] == expected[:3] + expected[4:]


@pytest.mark.parametrize("length", [96_000, 108_000, 120_000])
async def test_client_that_reads_slowly_gets_the_whole_result(
    running: RunningHead, environ: Mapping[str, str], length: int
) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        await loop.sock_connect(client, str(the_socket(environ)))
        wanted = {"want": "query", "sql": f"SELECT repeat('x', {length}) FROM range(8)", "values": []}
        await loop.sock_sendall(client, encode(wanted | {"version": VERSION}))
        received, end = bytearray(), encode({"end": True})
        while not received.endswith(end):
            piece = await loop.sock_recv(client, 4096)
            assert piece
            received += piece
            for _ in range(8):  # the head writes what fits, and would end the reply if it could
                await asyncio.to_thread(int)
    assert received.count(b"x" * length) == 8


async def test_recording_goes_on_while_a_result_of_long_texts_is_sent(
    running: RunningHead, environ: Mapping[str, str]
) -> None:
    head = await asyncio.to_thread(only_head, environ)
    source = RecorderSource.of_head(head, head.path or Path())
    result = await asyncio.to_thread(source.query, "SELECT repeat('x', 5000000) FROM range(200)")
    loop = asyncio.get_running_loop()
    reading = asyncio.create_task(asyncio.to_thread(lambda: sum(map(len, result.batches))))
    began = loop.time()
    longest, last = 0.0, began
    while not reading.done():
        await asyncio.sleep(0.01)
        longest, last = max(longest, loop.time() - last), loop.time()
    assert await reading == 200
    # Of one step for the whole result, the pause would last as long as the reading, on machines of any speed.
    assert longest < (last - began) / 2


async def test_what_an_intent_changed_is_in_the_file_when_it_is_answered(
    path: Path, environ: Mapping[str, str]
) -> None:
    running = RunningHead(path, environ, commit_every_s=600.0)
    await running.control.start()
    try:
        head = await asyncio.to_thread(only_head, environ)
        await asyncio.to_thread(head.carry_out, StartSession("load"))
        assert await run_query(head, "SELECT name, status FROM sessions") == [("load", "running")]
        await asyncio.to_thread(head.carry_out, StopSession("load"))
        assert await run_query(head, "SELECT name, status FROM sessions") == [("load", "stopped")]
    finally:
        await running.close()


async def test_query_error_reaches_the_client(running: RunningHead, environ: Mapping[str, str]) -> None:
    head = await asyncio.to_thread(only_head, environ)
    with pytest.raises(QueryError, match='Did you mean "sessions"'):
        await run_query(head, "FROM sesions")
    for statement, name in (
        ("DELETE FROM sessions", "DELETE"),
        ("vacuum", "VACUUM"),
        ("checkpoint", "CHECKPOINT"),
    ):
        with pytest.raises(QueryError, match=f"can be used here, not {name}"):
            await run_query(head, statement)


async def test_query_is_cancelled_when_its_client_leaves(
    running: RunningHead, environ: Mapping[str, str]
) -> None:
    assert running.recorder is not None
    head = await asyncio.to_thread(only_head, environ)
    source = RecorderSource.of_head(head, head.path or Path())
    asking = asyncio.create_task(asyncio.to_thread(source.query, "SELECT count(*) FROM range(1000000000000)"))
    pool = running.recorder._pool
    async with asyncio.timeout(30):
        while not pool._running:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(source.interrupt)
        with pytest.raises(QueryError, match=r"^the query was cancelled$"):
            await asking
        while pool._running:
            await asyncio.sleep(0.01)


async def test_ending_head_reports_to_waiting_clients(
    running: RunningHead, environ: Mapping[str, str]
) -> None:
    assert running.recorder is not None
    head = await asyncio.to_thread(only_head, environ)
    asking = asyncio.create_task(run_query(head, "SELECT count(*) FROM range(1000000000000)"))
    async with asyncio.timeout(30):
        while not running.recorder._pool._running:
            await asyncio.sleep(0.01)
    await running.close()
    with pytest.raises(QueryError, match="was closed before the query ended"):
        await asking
    with pytest.raises(StoreError, match="ended before it replied"):
        await run_query(head, "SELECT 1")


async def test_too_many_queries_are_refused(
    running: RunningHead,
    environ: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("gswarm_tui.control.server.MAX_QUERIES", 0)
    head = await asyncio.to_thread(only_head, environ)
    with pytest.raises(QueryError, match="0 queries are running or queued; try again when one"):
        await run_query(head, "SELECT 1")
    assert "a query was refused" in caplog.text


async def test_sessions_are_started_changed_and_stopped_as_by_the_keys(
    running: RunningHead, environ: Mapping[str, str], path: Path
) -> None:
    head = await asyncio.to_thread(only_head, environ)

    async def do(intent: Intent) -> dict[str, Any]:
        return await asyncio.to_thread(head.carry_out, intent)

    train = await do(StartSession("train", T0 + 10, "lr 1e-4"))
    assert (train["name"], train["started_at"], train["note"]) == ("train", T0 + 10, "lr 1e-4")
    assert (await do(StartSession()))["name"] == "session-1"
    with pytest.raises(RecorderError, match=r"^a session of this name is running: train$"):
        await do(StartSession(" train "))
    renamed = await do(ChangeSession("session-1", "eval", "second"))
    with pytest.raises(RecorderError, match="a session of this name is running: train"):
        await do(ChangeSession("eval", "train"))
    with pytest.raises(RecorderError, match='there is no session "tarin"; running: train, eval'):
        await do(StopSession("tarin"))
    with pytest.raises(RecorderError, match='"train" starts at this time or later'):
        await do(StopSession("train", T0 + 5))
    (stopped,) = (await do(StopSession("train", T0 + 50)))["stopped"]
    assert (stopped["session_id"], stopped["ended_at"]) == (train["session_id"], T0 + 50)
    with pytest.raises(RecorderError, match='"train" has already ended; running: eval'):
        await do(StopSession("train"))
    assert (await do(UndoStop(str(train["session_id"]))))["ended_at"] is None
    named_as_a_number = await do(StartSession(str(train["session_id"])))
    (stopped,) = (await do(StopSession(str(train["session_id"]))))["stopped"]
    assert stopped["session_id"] == named_as_a_number["session_id"] != train["session_id"]
    listed = (await asyncio.to_thread(only_head, environ)).status["sessions"]
    assert [(one["name"], one["note"]) for one in listed] == [("train", "lr 1e-4"), ("eval", "second")]
    assert {one["name"] for one in (await do(StopSession()))["stopped"]} == {"train", "eval"}
    with pytest.raises(RecorderError, match=r"^no session is running$"):
        await do(StopSession())
    for outside in (StartSession("x", T0 - 100), StartSession("x", T0 + 100), SetMark("x", at=T0 - 100)):
        with pytest.raises(RecorderError, match="the time isn't in the recording"):
            await do(outside)
    running.hub.flush()
    await running.close()
    assert query(path, "SELECT session_id, name FROM sessions ORDER BY session_id") == [
        (train["session_id"], "train"),
        (renamed["session_id"], "eval"),
        (named_as_a_number["session_id"], str(train["session_id"])),
    ]


async def test_head_without_a_recording_refuses_marks_and_queries(environ: Mapping[str, str]) -> None:
    running = RunningHead(None, environ)
    await running.control.start()
    head = await asyncio.to_thread(only_head, environ)
    with pytest.raises(QueryError, match="records nothing, so it can't run queries"):
        await run_query(head, "SELECT 1")
    with pytest.raises(RefusedError, match=r"nothing is recorded; start gswarm-tui without --no-record$"):
        await asyncio.to_thread(head.carry_out, SetMark("here"))
    await running.close()


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        LENGTH.pack(MAX_REQUEST + 1),
        LENGTH.pack(3) + b"\xc1\xc1\xc1",
        LENGTH.pack(1) + b"\x01",
        encode({"want": "nonsense", "version": 1}),
        encode({"want": "query", "sql": 3, "values": [], "version": 1}),
        encode({"want": "query", "sql": "SELECT 1", "values": [], "version": 0}),
        encode({"want": "mark", "name": ["x"], "values": {}, "version": 1}),
    ],
)
async def test_invalid_request_is_refused(
    running: RunningHead, environ: Mapping[str, str], request_bytes: bytes
) -> None:
    reader, writer = await asyncio.open_unix_connection(str(the_socket(environ)))
    writer.write(request_bytes)
    writer.write_eof()
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    assert not answer or "error" in decode(answer[LENGTH.size :])
    assert await run_query(await asyncio.to_thread(only_head, environ), "SELECT 1") == [(1,)]


async def test_other_users_are_ignored(
    running: RunningHead, environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gswarm_tui.control.server.is_own", lambda _connection: False)
    assert await asyncio.to_thread(running_heads, environ) == []


async def test_folder_is_closed_to_other_users(running: RunningHead, environ: Mapping[str, str]) -> None:
    top = Path(environ["XDG_RUNTIME_DIR"]) / "gswarm-tui"
    modes = {path.name: path.stat().st_mode & 0o777 for path in (top, *top.iterdir())}
    assert set(modes.values()) == {0o700}
    top.chmod(0o755)
    assert await asyncio.to_thread(running_heads, environ) == []
    top.chmod(0o700)


async def test_head_is_reached_after_its_users_logout_removed_the_runtime_folder(
    path: Path, environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gswarm_tui.control.server.REACHABLE_EVERY_S", 0.01)
    running = RunningHead(path, environ)
    await running.control.start()
    runtime = Path(environ["XDG_RUNTIME_DIR"])
    for _ in range(2):  # the second time, it is in a folder that stays
        shutil.rmtree(runtime)
        async with asyncio.timeout(30):
            while not (heads := await asyncio.to_thread(running_heads, environ)):
                await asyncio.sleep(0.01)
        assert [head.pid for head in heads] == [os.getpid()]
        runtime.mkdir(mode=0o700)
    assert await run_query(heads[0], "SELECT count(*) FROM recordings") == [(1,)]
    await running.close()
    assert await asyncio.to_thread(running_heads, environ) == []


async def test_next_head_removes_the_folder_of_a_killed_one(environ: Mapping[str, str], path: Path) -> None:
    code = (
        "import sys, os, asyncio\n"
        "from pathlib import Path\n"
        "from tests.integration.test_control import RunningHead\n"
        "async def main():\n"
        "    environ = {'XDG_RUNTIME_DIR': sys.argv[2]}\n"
        "    await RunningHead(Path(sys.argv[1]), environ).control.start()\n"
        "    print('listens', flush=True); await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path), environ["XDG_RUNTIME_DIR"]],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "listens\n"
        assert [head.pid for head in await asyncio.to_thread(running_heads, environ)] == [process.pid]
        top = Path(environ["XDG_RUNTIME_DIR"]) / "gswarm-tui"
        process.send_signal(signal.SIGKILL)
        process.wait()
    finally:
        process.kill()
        process.communicate()
    assert await asyncio.to_thread(running_heads, environ) == []
    assert [folder.name for folder in top.iterdir()] == [str(process.pid)]
    running = RunningHead(path, environ)
    await running.control.start()
    assert [folder.name for folder in top.iterdir()] == [str(os.getpid())]
    await running.close()
    assert list(top.iterdir()) == []


async def test_commands_query_the_head_while_it_records_and_the_file_afterwards(
    running: RunningHead,
    environ: Mapping[str, str],
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    source = await asyncio.to_thread(open_source, path, environ)
    assert isinstance(source, RecorderSource)
    rows = await asyncio.to_thread(lambda: source.query("SELECT count(*) FROM samples").rows())
    assert rows == [(6,)]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert await asyncio.to_thread(find_recording_file, None, environ) == path
    await running.close()
    finished = await asyncio.to_thread(lambda: open_source(path, environ, for_people=True))
    assert isinstance(finished, FileSource)
    assert finished.query("SELECT count(*) FROM samples").rows() == [(6,)]
    finished.close()
    with pytest.raises(UserError, match="no recording in"):
        find_recording_file(None, environ)


async def test_file_recorded_on_another_machine_names_it(
    environ: Mapping[str, str], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "login2")
    running = RunningHead(path, environ)
    assert registry.describe_remote_writer(path) == ""
    monkeypatch.setattr("socket.gethostname", lambda: "login1")
    assert registry.describe_remote_writer(path) == (
        f"{path} is being recorded by gswarm-tui on login2, process {os.getpid()}; "
        "run this command there, or after that process has ended"
    )
    assert registry.describe_remote_writer(path.with_name("other.duckdb")) == ""
    await running.close()
    assert registry.describe_remote_writer(path) == ""


DATETIMES = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)).map(  # noqa: DTZ001
    lambda moment: moment.replace(fold=0)  # which of two equal local times: not of interest here
)
ZONES = st.integers(-840, 840).map(lambda minutes: timezone(timedelta(minutes=minutes)))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.uuids()
    | st.dates()
    | st.times().map(lambda moment: moment.replace(fold=0))
    | st.timedeltas()
    | DATETIMES
    | st.builds(lambda moment, zone: moment.replace(tzinfo=zone), DATETIMES, ZONES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc"), inner, max_size=3),
    max_leaves=8,
)


@given(rows=st.lists(VALUES, max_size=5))
def test_messages_round_trip(rows: list[Any]) -> None:
    packed = encode({"rows": rows})
    assert message_length(packed[: LENGTH.size], len(packed)) == len(packed) - LENGTH.size
    assert repr(decode(packed[LENGTH.size :])["rows"]) == repr(rows)


@given(data=st.binary(max_size=60))
def test_any_bytes_decode_or_raise_message_error(data: bytes) -> None:
    with contextlib.suppress(MessageError):
        assert isinstance(decode(data), dict)
