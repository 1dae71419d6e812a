"""Viewers: the screen on a recorder that is another process, over its socket."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from textual.pilot import Pilot

from gswarm_agent.metrics import DEFAULT_GROUPS
from gswarm_tui.analysis.queries import RecordingQueries
from gswarm_tui.cli import main
from gswarm_tui.commands.head_choice import choose_head
from gswarm_tui.common.errors import UserError
from gswarm_tui.control import registry, viewers
from gswarm_tui.control.intents import (
    ChangeInterval,
    ChangeMetrics,
    RecorderError,
    SetMark,
    StartSession,
    StopRecording,
    StopSession,
)
from gswarm_tui.control.messages import VERSION, encode
from gswarm_tui.control.recorder import Recorder, Route
from gswarm_tui.control.recorder_source import RecorderSource
from gswarm_tui.control.routes import SocketRoute, SshRoute, relay_command
from gswarm_tui.control.server import ControlServer
from gswarm_tui.fleet.replica import fleet_state
from gswarm_tui.link.tracing import TraceChoice
from gswarm_tui.options.arguments import parse
from gswarm_tui.run import build
from gswarm_tui.run.plan import Plan
from gswarm_tui.store.querying.results import QueryError
from gswarm_tui.tui.app import GswarmApp
from tests.integration import sshd
from tests.integration.heads import eventually, head, nothing_left
from tests.integration.sshd import SshServer, public
from tests.integration.test_record import record
from tests.terminal import PATIENCE_S
from tests.tui.client import carry_out, control_server
from tests.tui.conftest import screen_text, shows
from tests.unit.store_recording import query

NODES = ("sim01", "sim02")
DELAY_S = 0.025
UID = "00000000-0000-4000-8000-000000000001"


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """Return an environment with an empty registry of heads."""
    monkeypatch.setattr(registry, "SHARED", str(tmp_path / "shared"))
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return {"XDG_RUNTIME_DIR": str(tmp_path / "run"), "HOME": str(tmp_path)}


def route_to(environ: Mapping[str, str], recording: str = "") -> SocketRoute:
    arguments = Namespace(recording=recording, db=None)
    return SocketRoute(environ, partial(choose_head, arguments, environ))


@dataclass
class Recording:
    """A recorder with two simulated nodes and its socket, in this process."""

    path: Path
    environ: Mapping[str, str]

    def __post_init__(self) -> None:
        options, plan = parse(["--demo", "2x2", "--db", str(self.path)], self.environ), Plan(NODES)
        self.hub = build.build_hub(options, plan)
        self.recorder = build.start_recording(self.hub, options, plan, [], UID)
        self.launcher = build.build_launcher(options, plan, "")
        build.add_links(self.hub, self.launcher, options, self.recorder)
        self.running: asyncio.Task[None] | None = None
        self.control: ControlServer | None = None

    async def start(self) -> None:
        self.control = control_server(self.hub, self.recorder, self.environ, label="two nodes", job_id="4711")
        await self.control.start()
        self.running = self.running or asyncio.create_task(self.hub.run())

    async def stop_serving(self, *, ended: bool) -> None:
        if self.control is not None:
            await self.control.close({} if ended else None)
            self.control = None

    async def close(self) -> None:
        await self.stop_serving(ended=True)
        await self.hub.stop_links()
        if self.running is not None:
            self.running.cancel()
            await asyncio.gather(self.running, return_exceptions=True)
        await self.launcher.close()
        await asyncio.to_thread(self.recorder.close, self.hub.now())

    def route(self) -> SocketRoute:
        return route_to(self.environ)

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                await asyncio.sleep(0.02)
        assert holds(), what


@pytest.fixture
async def recording(tmp_path: Path, environ: Mapping[str, str]) -> AsyncIterator[Recording]:
    made = Recording(tmp_path / "live.duckdb", environ)
    await made.start()
    await made.until(lambda: all(node.frames for node in made.hub.fleet.nodes.values()), "frames")
    yield made
    await made.close()


@asynccontextmanager
async def attached(route: Route, *, read_only: bool = False, screen: bool = False) -> AsyncIterator[Recorder]:
    """Follow a recorder."""
    run = Recorder(route, read_only=read_only, screen=screen)
    following: asyncio.Task[None] | None = None
    try:
        await run.start()
        following = asyncio.create_task(run.run())
        yield run
    finally:
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        run.close()
        await route.close()


@asynccontextmanager
async def on_screen(
    route: Route, *, read_only: bool = False
) -> AsyncIterator[tuple[GswarmApp, Recorder, Pilot[str]]]:
    """Follow a recorder with the app."""
    async with attached(route, read_only=read_only) as run:
        app = GswarmApp(
            run,
            starts_it=False,
            title=run.label,
            past=lambda: build.build_player(run, RecorderSource.of_recorder(run), run.recording_id),
            open_queries=lambda: RecordingQueries(RecorderSource.of_recorder(run)),
        )
        async with app.run_test(size=(120, 40), notifications=True) as pilot:
            yield app, run, pilot


async def test_only_screens_count_as_somebody_who_is_there(recording: Recording) -> None:
    control = recording.control
    assert control is not None
    async with attached(recording.route()):  # as serve and --http follow a recorder
        assert control.screens == 0
        async with attached(recording.route(), screen=True, read_only=True):  # as attach does, also in a page
            assert control.screens == 1
        await recording.until(lambda: control.screens == 0, "the screen's end")


async def test_key_of_a_viewer_requests_a_trace_from_the_recorder(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[TraceChoice] = []

    class Traces:
        def start(self, choice: TraceChoice) -> dict[str, object]:
            requested.append(choice)
            return {}

    async with on_screen(recording.route()) as (app, _, pilot):
        await pilot.press("K", "enter")
        await shows(app, pilot, "simulated nodes have no processes to trace")
        monkeypatch.setattr(recording.hub, "tracing", Traces())
        await pilot.press("K", "backspace", *"0.7", "tab", *"0-1", "enter")
        await recording.until(lambda: bool(requested), "the request")
    assert requested == [TraceChoice(700, (0, 1))]
    async with on_screen(recording.route(), read_only=True) as (app, _, pilot):
        await pilot.press("K", "enter")
        await shows(app, pilot, "read-only")
    assert len(requested) == 1


class DelayedRoute(SocketRoute):
    """Way to a recorder over a link that delays each direction by 25 ms."""

    place = "login2"

    async def connect(self, uid: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        there, back = await super().connect(uid)
        ours, theirs = socket_pair()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        relay_reader, relay_writer = await asyncio.open_unix_connection(sock=theirs)
        self.copying = [
            asyncio.create_task(copy_late(there, relay_writer)),
            asyncio.create_task(copy_late(relay_reader, back)),
        ]
        return reader, writer


def socket_pair() -> tuple[object, object]:
    import socket

    pair = socket.socketpair()
    for one in pair:
        one.setblocking(False)
    return pair


async def copy_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy a stream, each piece 25 ms after it came."""
    loop = asyncio.get_running_loop()
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            loop.call_later(DELAY_S, writer.write, data)
    await asyncio.sleep(DELAY_S)
    writer.close()


async def test_viewer_shows_the_same_fleet_with_its_history(recording: Recording) -> None:
    async with attached(recording.route()) as run:
        names = list(NODES)
        fleet = recording.hub.fleet

        def has_history() -> bool:
            mine, theirs = (
                [len(node.gpu_history or ()) for node in one.nodes.values()] for one in (run.fleet, fleet)
            )
            return mine == theirs

        await recording.until(has_history, "the same history")
        recording.hub.flush()
        state = fleet_state(fleet)
        await recording.until(lambda: fleet_state(run.fleet) == state, "the same state")
        assert list(run.fleet.nodes) == names
        assert (run.label, run.job_id, run.path, run.uid) == ("two nodes", "4711", recording.path, UID)
        assert abs(run.now() - recording.hub.now()) < 5


async def test_keys_act_on_the_recorder_and_all_viewers_show_it(recording: Recording) -> None:
    async with on_screen(recording.route()) as (app, run, pilot), attached(recording.route()) as other:
        await shows(app, pilot, "● attached · rec")
        await pilot.press("s", *"train", "enter")
        await shows(app, pilot, "● train")
        assert [one.name for one in other.fleet.sessions.running] == ["train"]
        await pilot.press("x")
        await shows(app, pilot, "stopped train")
        await recording.until(lambda: not other.fleet.sessions.running, "the end of the session")
        await pilot.press("u")
        await recording.until(lambda: bool(other.fleet.sessions.running), "undone")
        await pilot.press("M", *"epoch 3", "tab", *"loss=1.2", "enter")
        await recording.until(lambda: other.fleet.event_log[-1].kind == "mark", "the mark")
        assert other.fleet.event_log[-1].detail == '{"loss": 1.2}'
        await run.carry_out(ChangeInterval(500))
        await run.carry_out(ChangeMetrics(("core",)))
        await recording.until(lambda: other.fleet.metrics == ("core",), "the metrics")
        assert recording.hub.fleet.interval_ms == other.fleet.interval_ms == 500
        await pilot.press("q")
    assert app.return_value == "quit"
    assert [one.running for one in recording.hub.fleet.sessions.sessions.values()] == [True]


async def test_refused_change_is_explained(recording: Recording) -> None:
    carry_out(recording.hub, StartSession("train"))
    async with on_screen(recording.route()) as (app, _run, pilot):
        app.change("", lambda: StartSession("train"))
        await shows(app, pilot, "nothing was changed: a session of this name is running: train")
    assert [one.running for one in recording.hub.fleet.sessions.sessions.values()] == [True]


async def test_read_only_screen_answers_keys_that_change_the_recording(recording: Recording) -> None:
    carry_out(recording.hub, StartSession("train"))
    async with on_screen(recording.route(), read_only=True) as (app, _, pilot):
        await shows(app, pilot, "● attached, read-only · rec")
        assert "s start" not in screen_text(app)
        for key in ("s", "x", "u", "M", "i", "I", "S", "r", "n", "space", "s"):
            await pilot.press(key)
            if key not in ("S", "space"):
                await shows(
                    app, pilot, "this screen is read-only: it shows the recording and changes nothing"
                )
                app.clear_notifications()
                await pilot.pause()
    assert [one.running for one in recording.hub.fleet.sessions.sessions.values()] == [True]


async def test_recorder_refuses_the_changes_of_a_read_only_viewer(recording: Recording) -> None:
    async with on_screen(recording.route(), read_only=True) as (app, run, pilot):
        changes = (
            ChangeInterval(500),
            ChangeMetrics(("core",)),
            StartSession("train"),
            SetMark("epoch"),
            StopSession(),
            StopRecording(),
        )
        for change in changes:
            with pytest.raises(RecorderError, match="this screen is read-only"):
                await run.carry_out(change)
        await pilot.press("Q", *"select count(*) as recordings from recordings;", "enter")
        await shows(app, pilot, "1 row")
    fleet = recording.hub.fleet
    assert (fleet.interval_ms, len(fleet.sessions.sessions), len(fleet.metrics)) == (
        1000,
        0,
        len(DEFAULT_GROUPS),
    )


async def test_looking_back_and_queries_over_a_slow_link(recording: Recording) -> None:
    carry_out(recording.hub, StartSession("train"))
    await recording.until(lambda: recording.recorder.status().rows > 30, "rows on disk")
    route = DelayedRoute(recording.environ, recording.route().choose)
    async with on_screen(route) as (app, _, pilot):
        await shows(app, pilot, "attached to login2")
        begun = time.monotonic()
        await pilot.press("space")
        await shows(app, pilot, "recording continues")
        assert "╳" not in screen_text(app)
        assert app.player is not None
        assert app.player.problem == ""
        print(f"looked back after {time.monotonic() - begun:.1f} s")
        await pilot.press("space")
        await recording.until(lambda: app.player is None or not app.player.playhead.paused, "playing")
        await pilot.press("N")
        await shows(app, pilot, "attached to login2")
        await pilot.press("Q", *"select count(*) as recordings from recordings;", "enter")
        await shows(app, pilot, "1 row")
    await asyncio.gather(*route.copying)


async def test_query_is_cancelled_at_the_recorder(recording: Recording) -> None:
    async with attached(recording.route()) as run:
        source = RecorderSource.of_recorder(run)
        endless = "SELECT count(*) FROM range(1_000_000_000_000) a, range(1_000_000) b"
        querying = asyncio.create_task(asyncio.to_thread(lambda: source.query(endless).rows()))
        control = recording.control
        assert control is not None
        await recording.until(lambda: control._queries == 1, "the query")
        source.interrupt()
        with pytest.raises(QueryError, match="cancelled"):
            await querying
        await recording.until(lambda: control._queries == 0, "the end of the query")
        wrong = asyncio.to_thread(lambda: source.query("SELECT nothing FROM nowhere"))
        with pytest.raises(QueryError, match="nowhere"):
            await wrong


async def test_viewer_that_reads_nothing_costs_no_memory_and_catches_up(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewers, "BEHIND_BYTES", 20_000)
    reader, writer = await recording.route().connect("")
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(encode({"want": "view", "version": VERSION}))
    control = recording.control
    assert control is not None
    await recording.until(lambda: len(control._viewers._streams) == 1, "the viewer")
    (stream,) = control._viewers._streams
    async with attached(recording.route()) as other:
        for _ in range(2000):  # more than fits into buffers of the system
            carry_out(recording.hub, StartSession("x" * 200))
            carry_out(recording.hub, StopSession())
            recording.hub.flush()
        assert not stream.following
        most = stream.unread
        carry_out(recording.hub, StartSession("last"))
        recording.hub.flush()
        assert stream.unread <= most
        await recording.until(lambda: len(other.fleet.sessions.running) == 1, "the other viewer")
        reader._transport.resume_reading()  # type: ignore[attr-defined]
        reading = asyncio.create_task(reader.read(-1))
        await recording.until(lambda: stream.following, "the state once more")
        reading.cancel()
    writer.close()
    await recording.until(lambda: not control._viewers._streams, "the viewer's end")
    assert control._viewers not in recording.hub.sinks


async def test_error_of_the_viewers_part_costs_viewers_and_not_the_recording(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with on_screen(recording.route()) as (app, run, pilot):
        with monkeypatch.context() as broken:
            broken.setattr(viewers, "encode_event", 1 / 1)
            await shows(app, pilot, "reconnecting")
        await shows(app, pilot, "● attached · rec")
        frames = run.fleet.nodes["sim01"].frames
        await recording.until(lambda: run.fleet.nodes["sim01"].frames > frames, "new frames")
    assert recording.running is not None
    assert not recording.running.done()


async def test_viewer_says_that_the_recording_ended_and_stays(recording: Recording) -> None:
    async with on_screen(recording.route()) as (app, run, pilot):
        await recording.stop_serving(ended=True)
        await shows(app, pilot, "the recording ended; q closes this screen · ")
        assert re.search(r" rows? · ", screen_text(app))
        shown = run.now()
        assert "s starts one" not in screen_text(app)
        await pilot.press("s")
        await shows(app, pilot, "no session started: the recording ended; q closes this screen")
        assert run.now() == shown
        assert app.return_value is None


async def test_viewer_reconnects_to_the_recording(recording: Recording) -> None:
    async with on_screen(recording.route()) as (app, run, pilot):
        await recording.stop_serving(ended=False)
        await shows(app, pilot, "reconnecting")
        await recording.start()
        await shows(app, pilot, "● attached · rec")
        frames = run.fleet.nodes["sim01"].frames
        await recording.until(lambda: run.fleet.nodes["sim01"].frames > frames, "new frames")


def test_viewers_in_terminals_leave_a_recording_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    with nothing_left(path), record(tmp_path, "--demo", "2x2", "--", "cat") as recording:
        recording.wait_for("send data")
        words = ("attach", str(path))
        with head(*words) as one, head(*words) as stopped, head(*words) as killed:
            for viewer in (one, stopped, killed):
                viewer.wait_for("● attached")
            os.killpg(stopped.process.pid, signal.SIGSTOP)
            killed.kill()
            one.press("s")
            one.wait_for("start session")
            one.press("train\r")
            one.wait_for("● train")
            one.press("q")
            assert one.exit_status() == 0
            os.killpg(stopped.process.pid, signal.SIGCONT)
            stopped.wait_for("● train")
            assert recording.end() == (0, "")
            stopped.wait_for("the recording ended")
            stopped.press("q")
            assert stopped.exit_status() == 0
    assert query(path, "SELECT name, status FROM sessions ORDER BY session_id") == [
        ("cat", "stopped"),
        ("train", "stopped"),
    ]
    gaps = "SELECT count(*), max(seq) - min(seq) + 1 FROM host_samples GROUP BY node_id"
    assert all(count == span for count, span in query(path, gaps))


def test_without_a_recording_attach_says_so(tmp_path: Path) -> None:
    with head("attach", str(tmp_path / "none.duckdb")) as viewer:
        viewer.wait_for("no gswarm-tui of yours")
        assert viewer.exit_status() == 3


def test_detaching_loses_no_sample_and_keeps_sessions(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    with nothing_left(path), head("--launcher", "local", "--db", str(path)) as watched:
        watched.wait_for("1/1")
        watched.press("s")
        watched.wait_for("start session")
        watched.press("train\r")
        watched.wait_for("● train")
        watched.press("D")
        watched.wait_for("recording continues: gswarm-tui attach")
        assert watched.exit_status() == 0
        try:
            with head("attach", str(path)) as viewer:
                viewer.wait_for("● train")
                viewer.press("q")
                assert viewer.exit_status() == 0
        finally:
            assert main(["recording", "stop", "--db", str(path)]) == 0
        eventually(lambda: not path.with_name("run.duckdb.wal").exists(), "the closed file")
    assert query(path, "SELECT name, status FROM sessions") == [("train", "stopped")]
    runs = query(path, "SELECT life, last_seq, lost_frames FROM links")
    assert [lost for _, _, lost in runs] == [0]
    samples = "SELECT count(*), count(DISTINCT seq), min(seq), max(seq) FROM host_samples"
    ((count, distinct, first, last),) = query(path, samples)
    assert count == distinct == last - first + 1
    assert first == 1


@pytest.fixture
def login_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environ: Mapping[str, str]
) -> Iterator[SshServer]:
    """Return a host that the user's own ssh reaches as gpu01, with the registry of ``environ``."""
    runtime, folder = environ["XDG_RUNTIME_DIR"], tmp_path / "sshd"
    folder.mkdir()
    with sshd.running(folder, SetEnv=f"XDG_RUNTIME_DIR={runtime}") as server:
        server.trust()
        ssh = tmp_path / "bin" / "ssh"
        ssh.parent.mkdir()
        ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {server.config()} "$@"\n')
        ssh.chmod(0o755)
        monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
        yield server


async def test_viewer_of_another_host_attaches_by_ssh(login_node: SshServer, recording: Recording) -> None:
    async with on_screen(SshRoute("gpu01", UID[:8])) as (app, _, pilot):
        await shows(app, pilot, "● attached to gpu01 · rec")
        await pilot.press("s", *"train", "enter")
        await shows(app, pilot, "● train")
        for session in login_node.sessions():
            os.kill(session, signal.SIGKILL)
        log = login_node.folder / "sshd.log"
        await recording.until(lambda: log.read_text().count("Accepted publickey") == 2, "another login")
        await shows(app, pilot, "● attached to gpu01 · rec")
    assert [one.name for one in recording.hub.fleet.sessions.running] == ["train"]


async def test_failures_of_ssh_are_explained(login_node: SshServer) -> None:
    for host, recorded, why, status in (
        ("gpu01", "nothing", "^gpu01: no gswarm-tui of yours", 3),
        ("unknown.invalid", "nothing", "^unknown.invalid: .*resolve hostname", 1),
    ):
        with pytest.raises(UserError, match=why) as raised:
            async with attached(SshRoute(host, recorded)):
                pass
        assert raised.value.exit_status == status
    login_node.trust(public(login_node.user_key))
    with pytest.raises(UserError, match=r"^gpu01: Host key verification failed"):
        async with attached(SshRoute("gpu01", "")):
            pass


def test_relay_is_run_by_this_interpreter_or_the_one_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(path: str) -> subprocess.CompletedProcess[str]:
        words = ["sh", "-c", relay_command("no such recording")]
        return subprocess.run(words, env={"PATH": path}, capture_output=True, text=True, check=False)

    assert "no gswarm-tui of yours" in answer("/usr/bin:/bin").stderr
    monkeypatch.setattr("sys.executable", "/gone/bin/python")
    missing = answer("/usr/bin:/bin")
    assert missing.returncode == 127
    assert missing.stderr == "gswarm-tui is not installed: neither /gone/bin/python nor PATH has it\n"
    (tmp_path / "gswarm-tui").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "gswarm-tui").chmod(0o755)
    assert answer(f"{tmp_path}:/usr/bin:/bin").stdout == "attach --relay no such recording\n"
