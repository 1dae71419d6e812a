"""The agent's side of a stream: in memory, and as the real process that a head starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gswarm_agent.frame import ClockExchange, Frame, GpuFacts, Hello, HostFacts, Note
from gswarm_agent.simulated import SimulatedNode, Simulation
from gswarm_agent.stream import Conversation, Outbox
from gswarm_agent.wire import (
    MAGIC,
    Ack,
    Bye,
    Decoder,
    Lost,
    Message,
    Ping,
    Pong,
    SetInterval,
    Start,
    Stop,
    encode,
)
from tests.unit.agent_process import Agent

HELLO = Hello("1", "life", 1000, False, SimulatedNode(Simulation()).facts()[0], (), {}, (), (), ())
FRAME = HELLO.tables.frame(1, 1, 0.0, 0, gpus=(), host=None)


def said(outbox: Outbox) -> list[Message]:
    """Everything that an outbox would write, read by a head that has had its hello."""
    decoder = Decoder()
    list(decoder.feed(MAGIC + encode(HELLO)))
    found: list[Message] = []
    while data := outbox.take():
        found += decoder.feed(data)
        if outbox.closed:
            break
    return found


def test_answers_overtake_frames_and_the_bye_comes_last() -> None:
    outbox = Outbox()
    for seq in range(1, 200):
        outbox.put_frame(replace(FRAME, seq=seq))
    outbox.close(Bye("done"))
    outbox.put_answer(lambda: Pong(ClockExchange(1, 2, 3)))
    first, *frames, last = said(outbox)
    assert first == Pong(ClockExchange(1, 2, 3))
    assert [f.seq for f in frames if isinstance(f, Frame)] == list(range(1, 200))
    assert last == Bye("done")
    assert outbox.closed


def test_a_head_that_does_not_read_loses_the_oldest_frames_and_is_told_how_many() -> None:
    outbox = Outbox(most_waiting=3)
    outbox.life = "life"
    note = Note("xid", "error", "XID 79")
    for seq in range(1, 11):
        outbox.put_frame(replace(FRAME, seq=seq, notes=(note,) if seq == 8 else ()))
    frames = said(outbox)
    outbox.put_frame(replace(FRAME, seq=11))
    frames += said(outbox)
    assert [f.seq for f in frames if isinstance(f, Frame)] == [8, 9, 10, 11]
    assert [f.notes for f in frames if isinstance(f, Frame)] == [(note,), (), (), ()]
    lost = [message for message in frames if isinstance(message, Lost)]
    assert lost == frames[:1] == [Lost("life", 7, 1, "the node sent more than was read")]


class Times:
    """A watch that shows one time after the other."""

    def __init__(self, *times: int) -> None:
        self.times = list(times)

    def monotonic_ns(self) -> int:
        return 0

    def wall_ns(self) -> int:
        return self.times.pop(0)


def test_a_ping_is_answered_with_all_three_times() -> None:
    outbox = Outbox()
    conversation = Conversation(outbox, Times(100, 130))
    conversation.receive(MAGIC + encode(Ping(7)))
    assert said(outbox) == [Pong(ClockExchange(sent=7, received=100, answered=130))]


def test_no_hello_before_the_head_starts() -> None:
    conversation = Conversation(Outbox())
    assert conversation.introduce(SimulatedNode(Simulation()), simulated=True) is None


def test_the_interval_may_change_between_start_and_hello() -> None:
    outbox = Outbox()
    conversation = Conversation(outbox)
    conversation.receive(MAGIC + encode(Start(1000, 1)) + encode(SetInterval(20)) + encode(Ack("life", 3)))
    assert conversation.introduce(SimulatedNode(Simulation()), simulated=True) is not None
    (hello,) = said(outbox)
    assert isinstance(hello, Hello)
    assert hello.interval_ms == 100
    assert hello.simulated


def test_a_hello_is_said_again_when_other_things_cannot_be_measured() -> None:
    lost: dict[str, str] = {}

    class Failing(SimulatedNode):
        def facts(self) -> tuple[HostFacts, tuple[GpuFacts, ...], dict[str, str]]:
            host, gpus, known = super().facts()
            return host, gpus, {**known, **lost}

    outbox, probe = Outbox(), Failing(Simulation())
    conversation = Conversation(outbox)
    conversation.receive(MAGIC + encode(Start(1000, 1)))
    conversation.introduce(probe, simulated=True)
    (first,) = said(outbox)
    conversation.reintroduce(probe)
    assert not said(outbox)
    lost["gpu1"] = "it has fallen off the bus"
    conversation.reintroduce(probe)
    (second,) = said(outbox)
    assert isinstance(first, Hello)
    assert isinstance(second, Hello)
    assert second.life == first.life
    assert second.capabilities == {**first.capabilities, "gpu1": "it has fallen off the bus"}


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (MAGIC + encode(Start(1000, 1)) + encode(Stop()), "asked to stop"),
        (b"", "the head closed the connection"),
        (MAGIC + b"\xff\xff\xff\xff", "the head sent something unexpected"),
    ],
)
def test_what_ends_a_conversation(sent: bytes, reason: str) -> None:
    conversation = Conversation(Outbox())
    conversation.receive(sent)
    assert conversation.started.is_set()
    assert conversation.ended is not None
    assert conversation.ended.startswith(reason)
    assert conversation.introduce(SimulatedNode(Simulation()), simulated=True) is None


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


def test_it_is_found_by_its_name(agent: Agent) -> None:
    agent.start(60_000)
    agent.hear(Frame)
    assert Path(f"/proc/{agent.process.pid}/comm").read_text() == "gswarm-agent\n"


def test_frames_keep_coming_in_order(agent: Agent) -> None:
    agent.start(100)
    frames = agent.hear(Frame, 5)
    assert [f.seq for f in frames] == list(range(1, len(frames) + 1))


def test_a_ping_is_answered_while_no_sample_is_due(agent: Agent) -> None:
    agent.start(60_000)
    agent.hear(Frame)
    agent.say(Ping(42))
    (pong,) = agent.hear(Pong)
    assert isinstance(pong, Pong)
    assert pong.clock.sent == 42
    assert pong.clock.received <= pong.clock.answered


def test_a_new_interval_takes_effect_at_once(agent: Agent) -> None:
    agent.start(60_000)
    agent.hear(Frame)
    agent.say(SetInterval(100))
    agent.hear(Frame, 3)


def test_stop_is_answered_with_a_bye(agent: Agent) -> None:
    agent.start()
    agent.hear(Frame)
    agent.say(Stop())
    assert agent.hear(Bye) == [Bye("asked to stop")]
    assert agent.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_is_answered_with_a_bye(agent: Agent, number: signal.Signals) -> None:
    agent.start(60_000)
    agent.hear(Frame)
    agent.process.send_signal(number)
    assert agent.hear(Bye) == [Bye(f"the agent was ended by {number.name}")]
    assert agent.end() == 0


def test_a_signal_before_the_start_ends_it_too(agent: Agent) -> None:
    assert agent.process.stdout is not None
    assert os.read(agent.process.stdout.fileno(), len(MAGIC)) == MAGIC
    agent.process.send_signal(signal.SIGTERM)
    assert agent.end() == 0


def test_a_head_that_is_gone_ends_it(agent: Agent) -> None:
    agent.start()
    agent.hear(Frame)
    assert agent.process.stdin is not None
    assert agent.process.stdout is not None
    agent.process.stdout.close()
    agent.process.stdin.close()
    assert agent.end() == 0
    assert agent.process.stderr is not None
    assert agent.process.stderr.read() == b""


def test_a_blocked_head_finds_pongs_frames_and_the_gap_when_it_reads_again(agents: list[Agent]) -> None:
    script = (
        "import os, sys\n"
        "import gswarm_agent.stream as stream\n"
        "class SmallOutbox(stream.Outbox):\n"
        "    def __init__(self): super().__init__(4)\n"
        "    def put_frame(self, frame):\n"
        "        super().put_frame(frame)\n"
        "        if self._dropped == 3: os.write(2, b'three are gone')\n"
        "stream.Outbox = SmallOutbox\n"
        "from gswarm_agent.__main__ import main\n"
        "sys.exit(main(['stream', '--simulate', '{\"gpus\": 64}']))\n"
    )
    agent = Agent(sys.executable, "-c", script)
    agents.append(agent)
    agent.start(100)
    agent.hear(Hello)
    assert agent.process.stderr is not None
    assert agent.process.stderr.read(5) == b"three"  # the pipe is full, then the outbox
    lost = agent.hear(Lost)[0]
    before = [m for m in agent.heard[: agent.heard.index(lost)] if isinstance(m, Frame)]
    agent.hear(Frame, len(before) + 1)
    after = next(m for m in agent.heard[agent.heard.index(lost) :] if isinstance(m, Frame))
    assert before[-1].seq < lost.seq == after.seq - 1
    agent.say(Ping(1))
    agent.hear(Pong)


def test_what_is_printed_by_mistake_does_not_reach_the_wire(agents: list[Agent]) -> None:
    script = (
        "import os, sys\n"
        "import gswarm_agent.simulated as s\n"
        "read = s.SimulatedNode.read\n"
        "def noisy(self, now):\n"
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


def test_a_probe_that_fails_is_told_in_the_bye_and_in_the_exit_status(agents: list[Agent]) -> None:
    script = (
        "import sys\n"
        "import gswarm_agent.simulated as s\n"
        "def broken(self, now): raise RuntimeError('the bus fell off')\n"
        "s.SimulatedNode.read = broken\n"
        "from gswarm_agent.__main__ import main\n"
        "sys.exit(main(['stream', '--simulate', '{}']))\n"
    )
    agent = Agent(sys.executable, "-c", script)
    agents.append(agent)
    agent.start()
    assert agent.hear(Bye) == [Bye("the agent failed: RuntimeError: the bus fell off")]
    assert agent.end() == 1


@pytest.mark.parametrize(
    ("arguments", "said_what"),
    [
        ([], "a command is missing"),
        (["dance"], "unknown command 'dance'"),
        (["stream", "--fast"], "stream can't read '--fast'"),
        (["stream", "--simulate", "7"], "a simulation is a JSON object"),
        (["once", "--simulate", '{"cats": 1}'], "a simulation has no 'cats'"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_answered_in_one_sentence(
    arguments: list[str], said_what: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gswarm_agent", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"gswarm-agent: {said_what}")
    assert done.stdout == ""
