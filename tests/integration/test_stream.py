"""The agent without a recording: its server in memory, and the real process that a head starts."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gswarm_agent import kineto
from gswarm_agent.asking.ranks import LocalRank
from gswarm_agent.folder import Folder, NoFolder
from gswarm_agent.frame import Frame, Hello
from gswarm_agent.metrics import DEFAULT_GROUPS
from gswarm_agent.server import Server
from gswarm_agent.simulated import SimulatedNode, Simulation
from gswarm_agent.spool import Spool
from gswarm_agent.wire import (
    MAGIC,
    Ack,
    Bye,
    Configure,
    Decoder,
    Message,
    Ping,
    Pong,
    ReadEnergy,
    RequestTrace,
    Start,
    Stop,
    encode,
)
from tests.integration.agent_process import Agent
from tests.kineto_standin import KinetoProcess


class OneHead:
    """A server with a spool in memory, and the socket of its only head, in one thread."""

    def __init__(self, probe: SimulatedNode, folder: Folder | None = None) -> None:
        self.selector = selectors.PollSelector()
        self.server = Server(Spool(folder or NoFolder(), 1 << 20), self.selector, lambda: probe)
        self.socket, theirs = socket.socketpair()
        self.socket.setblocking(False)
        self.decoder = Decoder()
        self.server.connect(theirs.fileno(), theirs.detach())

    def handle_due(self) -> bool:
        for key, _ in self.selector.select(0):
            key.data()
        self.server.handle_due()
        return not self.server.is_over()

    def send(self, data: bytes) -> None:
        self.socket.send(data)
        self.handle_due()

    def read(self) -> list[Message]:
        """Read until the server has nothing more to send."""
        messages = list[Message]()
        while True:
            self.handle_due()
            try:
                data = self.socket.recv(1 << 16)
            except BlockingIOError:
                return messages
            if not data:
                return messages
            messages += self.decoder.feed(data)

    def close(self) -> None:
        self.server.close()
        self.selector.close()
        self.socket.close()


@pytest.fixture
def head() -> Iterator[OneHead]:
    head = OneHead(SimulatedNode(Simulation()))
    yield head
    head.close()


def test_a_head_that_reads_leaves_nothing_in_memory(head: OneHead) -> None:
    head.send(MAGIC + encode(Start(100, 1)))
    found = list[Message]()
    while len(found) < 4:
        found += head.read()
    assert [m.seq for m in found if isinstance(m, Frame)] == [1, 2, 3]
    head.send(encode(Stop()))
    assert head.read() == [Bye("asked to stop")]
    assert not head.handle_due()


def test_a_stop_takes_a_last_frame_if_energy_was_requested(head: OneHead) -> None:
    head.send(MAGIC + encode(Start(60_000, 1)))
    head.read()
    head.send(encode(ReadEnergy()) + encode(Stop()))
    last, bye = head.read()
    assert isinstance(last, Frame)
    assert (last.seq, bye) == (2, Bye("asked to stop"))


def test_a_clock_that_is_set_is_reported_once_with_its_step(
    head: OneHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    head.send(MAGIC + encode(Start(20, 1)))
    hello, *_ = head.read()
    assert isinstance(hello, Hello)
    now_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() - 3600 * 10**9)
    frames: list[Frame] = []
    while len(frames) < 4:
        frames += [message for message in head.read() if isinstance(message, Frame)]
    (note,) = (note for frame in frames for note in frame.notes if note.kind == "clock")
    assert note.message == "this node's clock was set: -3600.000 s since the agent's start"
    detail = json.loads(note.detail or "")
    assert (round(detail["step_s"], 1), detail["life"]) == (-3600.0, hello.life)
    assert abs(frames[-1].ts_ns - now_ns()) < 60 * 10**9, "the samples' own clock goes on"


def test_trace_starts_by_a_clock_that_was_set(head: OneHead, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() - 3600 * 10**9)
    # A short path, as of sockets.
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as folder:
        ready = {"KINETO_USE_DAEMON": "1", "KINETO_IPC_SOCKET_DIR": folder}
        process = LocalRank(os.getpid(), 0, None, ready, True)
        monkeypatch.setattr(kineto, "find_ranks", lambda _job, _proc: [process])
        head.send(MAGIC + encode(Start(20, 1)))
        head.send(encode(RequestTrace("t1", (), 1_800_003_600 * 10**9, 500, False)))
        while not Path(folder, "dynolog").exists():
            head.handle_due()
        asking = KinetoProcess(folder, 42)
        asking.send_question()
        head.handle_due()
        starts_ms = int(asking.read_answer()["PROFILE_START_TIME"])
        asking.close()
    assert starts_ms == pytest.approx(1_800_000_000_000, abs=1000)


def test_the_interval_may_change_between_start_and_hello(head: OneHead) -> None:
    head.send(MAGIC + encode(Start(1000, 1)) + encode(Configure(20, DEFAULT_GROUPS)) + encode(Ack("life", 3)))
    hello, _ = head.read()
    assert isinstance(hello, Hello)
    assert hello.interval_ms == 100
    assert hello.simulated


def test_the_bye_states_what_no_recorder_sends(head: OneHead) -> None:
    head.send(MAGIC + b"\xff\xff\xff\xff")
    (bye,) = head.read()
    assert isinstance(bye, Bye)
    assert bye.reason.startswith("the recorder sent something unexpected")


@pytest.fixture
def agent(agents: list[Agent]) -> Agent:
    agents.append(Agent())
    return agents[0]


def test_the_hello_answers_the_clock_and_a_frame_follows_at_once(agent: Agent) -> None:
    before = time.time_ns()
    agent.start(60_000)
    agent.hear(Frame)
    hello, frame = agent.heard
    assert isinstance(hello, Hello)
    assert isinstance(frame, Frame)
    assert hello.clock is not None
    assert before <= hello.clock.sent <= hello.clock.received <= hello.clock.answered <= time.time_ns()
    assert frame.seq == 1
    assert frame.gpus.count == 2


def test_the_process_is_called_gswarm_agent(agent: Agent) -> None:
    agent.start(60_000)
    agent.hear(Frame)
    assert Path(f"/proc/{agent.process.pid}/comm").read_text() == "gswarm-agent\n"


def test_a_ping_gets_its_pong_while_no_sample_is_due(agent: Agent) -> None:
    agent.start(60_000)
    agent.hear(Frame)
    agent.say(Ping(42))
    (pong,) = agent.hear(Pong)
    assert isinstance(pong, Pong)
    assert pong.clock.sent == 42
    assert pong.clock.received <= pong.clock.answered


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_agent_with_a_bye(agent: Agent, number: signal.Signals) -> None:
    agent.start(60_000)
    agent.hear(Frame)
    agent.process.send_signal(number)
    assert agent.hear(Bye) == [Bye(f"the agent was ended by {number.name}")]
    assert agent.end() == 0


def test_a_signal_before_the_start_ends_the_agent(agent: Agent) -> None:
    assert agent.process.stdout is not None
    assert os.read(agent.process.stdout.fileno(), len(MAGIC)) == MAGIC
    agent.process.send_signal(signal.SIGTERM)
    assert agent.end() == 0


def test_stray_prints_do_not_reach_the_wire(agents: list[Agent]) -> None:
    script = (
        "import os, sys\n"
        "import gswarm_agent.simulated as s\n"
        "read = s.SimulatedNode.read\n"
        "def noisy(self, now, fresh):\n"
        "    print('stray'); os.write(1, b'more'); os.system('echo from a child')\n"
        "    return read(self, now)\n"
        "s.SimulatedNode.read = noisy\n"
        "from gswarm_agent.__main__ import main\n"
        "sys.exit(main(['stream', '--simulate', '{}']))\n"
    )
    agent = Agent(sys.executable, "-c", script)
    agents.append(agent)
    agent.start()
    agent.hear(Frame, 3)
    agent.say(Stop())
    agent.hear(Bye)
    agent.end()
    assert agent.process.stderr is not None
    assert b"from a child" in agent.process.stderr.read()
