"""The agent outlives its connections: tests with real processes of head and node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gswarm_agent.frame import Frame, Hello
from gswarm_agent.spool import ENDED, UNREADABLE
from gswarm_agent.wire import MAGIC, SENT_ALL, Ack, Bye, JobEnds, Lost, Ping, Pong, Stop
from tests.integration.agent_node import Node, disconnect, gone, hear_of, kill, lives, sequences, until
from tests.integration.agent_process import Agent
from tests.terminal import PATIENCE_S


def test_the_agent_continues_without_a_head_and_the_next_head_gets_its_frames(node: Node) -> None:
    first = node.attach()
    (hello,) = first.hear(Hello)
    first.hear(Frame, 3)
    disconnect(first)
    until(lambda: node.waiting()[hello.life] >= 8)
    second = node.attach((hello.life, 2))
    second.hear(Frame, 8)
    assert lives(second) == [hello.life]
    assert sequences(second, hello.life) == list(range(3, 3 + len(sequences(second, hello.life))))


def test_stop_delivers_the_last_frame_waits_for_its_ack_and_removes_the_folder(node: Node) -> None:
    agent = node.attach()
    (hello,) = agent.hear(Hello)
    agent.hear(Frame, 3)
    pid = node.pid
    agent.say(Stop())
    agent.say(Ping(1))
    agent.hear(Pong)
    assert not any(isinstance(message, Bye) for message in agent.heard)
    agent.say(Ack(hello.life, 10**6))
    assert agent.hear(Bye) == [Bye("asked to stop")]
    assert agent.end() == 0
    until(lambda: gone(pid))
    assert node.status() == []
    assert list(node.folder.iterdir()) == []


def test_a_killed_connection_loses_no_frame(node: Node) -> None:
    first = node.attach()
    (hello,) = first.hear(Hello)
    first.process.kill()
    first.process.wait()
    second = node.attach()
    hear_of(second, hello.life, 10)
    assert lives(second) == [hello.life]
    assert sequences(second, hello.life)[:10] == list(range(1, 11))


def test_the_newest_head_replaces_the_previous_one(node: Node) -> None:
    first = node.attach()
    first.hear(Frame, 2)
    second = node.attach()
    second.hear(Frame, 4)
    assert first.hear(Bye) == [Bye("another head took over")]
    assert first.end() == 0
    assert lives(first) == lives(second)
    assert len(node.status()) == 1


def test_two_recordings_of_one_user_have_an_agent_each(node: Node) -> None:
    first, second = node.attach(), node.attach(options=("--recording", "other"))
    (hello,), (other,) = first.hear(Hello), second.hear(Hello)
    assert hello.life != other.life
    assert [entry["recording"] for entry in node.status()] == ["other", "rec"]
    second.say(Stop(), Ack(other.life, 10**6))
    second.hear(Bye)
    first.hear(Frame, len(first.hear(Frame)) + 2)
    until(lambda: [entry["recording"] for entry in node.status()] == ["rec"])


def test_heads_that_connect_at_once_start_one_agent(node: Node) -> None:
    many = [Agent(*node.words()) for _ in range(4)]
    node.agents += many
    for agent in many:
        agent.start()
    left = []
    for agent in many:
        try:
            agent.hear(Frame, 10)
            left.append(agent)
        except AssertionError:
            assert agent.heard[-1] == Bye("another head took over")
    assert len(left) == 1
    assert len({life for agent in many for life in lives(agent)}) == 1
    assert len(node.status()) == 1


def test_sigterm_puts_everything_on_disk_for_the_next_life_to_deliver(node: Node) -> None:
    first = node.attach()
    (hello,) = first.hear(Hello)
    first.hear(Frame, 3)
    disconnect(first)
    kill(node.pid, signal.SIGTERM)
    waiting = node.waiting()[hello.life]
    second = node.attach((hello.life, 1))
    hear_of(second, hello.life, waiting)
    second.hear(Hello, 2)
    assert sequences(second, hello.life) == list(range(2, waiting + 1))
    assert [h.clock is None for h in second.heard if isinstance(h, Hello)] == [True, False]
    second.say(Ack(hello.life, waiting))
    until(lambda: hello.life not in node.waiting())


def test_a_killed_agent_is_reported_and_its_unsent_frames_are_counted(node: Node) -> None:
    first = node.attach()
    (hello,) = first.hear(Hello)
    first.hear(Frame, 5)
    last = sequences(first, hello.life)[-1]
    kill(node.pid)
    while True:  # what was on its way still comes
        try:
            first.hear(Frame, len(first.hear(Frame)) + 1)
        except AssertionError as ended:
            assert "its process on the node was killed or failed" in str(ended)  # noqa: PT017  # read with stderr
            break
    last = sequences(first, hello.life)[-1]
    assert first.end() == 0
    second = node.attach((hello.life, last - 2))
    second.hear(Frame)
    assert hello.life not in lives(second)
    (lost,) = second.hear(Lost)
    assert (lost.life, lost.reason) == (hello.life, ENDED)
    assert lost.seq in {last, last + 1}
    assert second.heard.index(lost) < second.heard.index(second.hear(Hello)[0])
    third = node.attach()
    assert third.hear(Lost) == [lost]
    third.say(Ack(lost.life, lost.seq))
    third.hear(Hello)
    third.say(Ping(1))
    third.hear(Pong)
    fourth = node.attach()
    fourth.hear(Frame)
    assert not any(isinstance(message, Lost) for message in fourth.heard)


def test_frames_on_disk_survive_a_killed_agent(node: Node) -> None:
    first = node.attach(options=("--memory-mib", "0.01"))
    (hello,) = first.hear(Hello)
    first.hear(Frame, 3)
    until(lambda: any(name.endswith(".frames") for name in node.files()))
    kill(node.pid)
    kept = node.waiting()[hello.life]
    assert kept > 0
    second = node.attach()
    second.hear(Hello, 2)
    assert sequences(second, hello.life) == list(range(1, kept + 1))


def test_a_full_spool_drops_the_oldest_frames_and_reports_how_many(node: Node) -> None:
    options = ("--memory-mib", "0.003", "--spool-mib", "0.01")
    first = node.attach(options=options)
    (hello,) = first.hear(Hello)
    disconnect(first)
    until(lambda: first_waiting(node) > 8)
    second = node.attach()
    second.hear(Frame, 20)
    found = sequences(second, hello.life)
    assert found[0] > 8
    lost = second.hear(Lost)[0]
    assert (lost.life, lost.seq, lost.reason) == (hello.life, found[0] - 1, UNREADABLE)


def first_waiting(node: Node) -> int:
    """Return the sequence number in the name of the oldest segment."""
    return min((int(name[-19:-7]) for name in node.files() if name.endswith(".frames")), default=0)


def test_only_left_option_delivers_waiting_frames_without_sampling(node: Node) -> None:
    first = node.attach()
    (hello,) = first.hear(Hello)
    first.hear(Frame, 3)
    disconnect(first)
    kill(node.pid, signal.SIGTERM)
    waiting = node.waiting()[hello.life]
    second = node.attach(options=("--only-left",))
    hear_of(second, hello.life, waiting)
    second.say(Ack(hello.life, waiting))
    assert second.hear(Bye) == [Bye(SENT_ALL)]
    assert lives(second) == [hello.life]
    assert second.end() == 0
    until(lambda: list(node.folder.iterdir()) == [])


def test_without_a_head_the_agent_ends_after_the_linger_time_and_keeps_its_frames(node: Node) -> None:
    first = node.attach(options=("--linger", "0.5"))
    (hello,) = first.hear(Hello)
    first.hear(Frame, 2)
    pid = node.pid
    disconnect(first)
    until(lambda: gone(pid))
    assert node.waiting()[hello.life] >= 2


def test_the_agent_ends_with_its_job_and_keeps_unacknowledged_frames(node: Node) -> None:
    agent = node.attach()
    (hello,) = agent.hear(Hello)
    agent.hear(Frame, 3)
    pid = node.pid
    agent.say(JobEnds(at=10**18 + 500 * 10**6, sent=10**18))  # by any clock half a second from now
    assert agent.hear(Bye) == [Bye("the agent ended because the job ended")]
    assert agent.end() == 0
    until(lambda: gone(pid))
    assert node.waiting()[hello.life] == sequences(agent, hello.life)[-1]


def test_a_job_that_was_extended_keeps_its_agent(node: Node) -> None:
    extended: list[tuple[int | None, tuple[str, ...]]] = [(10**18, ()), (None, ("--recording", "other"))]
    first = [node.attach(options=options) for _, options in extended]
    for agent in first:
        agent.say(JobEnds(at=4 * 10**9, sent=0))
    before = [agent.hear(Hello)[0].life for agent in first]
    its_end = time.monotonic() + 4
    second = []
    for agent, (later, options) in zip(first, extended, strict=True):
        disconnect(agent)
        second.append(node.attach(options=options))
        second[-1].say(JobEnds(at=later, sent=0))
        second[-1].hear(Frame)
    until(lambda: time.monotonic() > its_end)
    for agent, life in zip(second, before, strict=True):
        agent.hear(Frame, len(agent.hear(Frame)) + 10)
        assert lives(agent) == [life]
        assert not any(isinstance(message, Bye) for message in agent.heard)


def test_after_the_job_waiting_frames_are_delivered_without_sampling(node: Node) -> None:
    first = node.attach()
    (hello,) = first.hear(Hello)
    first.hear(Frame, 3)
    disconnect(first)
    kill(node.pid, signal.SIGTERM)
    waiting = node.waiting()[hello.life]
    second = Agent(*node.words())
    node.agents.append(second)
    second.start(100, tell=(JobEnds(at=0, sent=1),))
    hear_of(second, hello.life, waiting)
    second.say(Ack(hello.life, waiting))
    assert second.hear(Bye) == [Bye("the agent ended because the job ended")]
    assert lives(second) == [hello.life]
    until(lambda: list(node.folder.iterdir()) == [])


def test_hold_option_waits_until_the_agent_has_ended(node: Node) -> None:
    agent = node.attach(options=("--hold",))
    (hello,) = agent.hear(Hello)
    pid = node.pid
    assert agent.process.stdin is not None
    agent.process.stdin.close()
    second = node.attach(options=("--hold",))
    second.hear(Hello)
    assert agent.process.poll() is None
    second.say(Stop(), Ack(hello.life, 10**6))
    second.hear(Bye)
    assert agent.end() == second.end() == 0
    until(lambda: gone(pid))


def test_relay_ends_with_its_head_even_if_the_agent_hangs(node: Node) -> None:
    head = node.attach()
    head.hear(Frame, 1)
    pid = node.pid
    os.kill(pid, signal.SIGSTOP)
    other = node.attach()
    assert other.process.stdin is not None
    other.process.stdin.close()
    assert other.process.wait(PATIENCE_S) == 0
    os.kill(pid, signal.SIGCONT)
    disconnect(head)


def test_the_end_of_a_step_ends_its_agent_with_a_bye(node: Node) -> None:
    agent = node.attach(options=("--hold",), interval_ms=60_000)
    (hello,) = agent.hear(Hello)
    agent.hear(Frame)
    agent.say(Ack(hello.life, 1))
    pid = node.pid
    agent.process.terminate()
    assert agent.hear(Bye) == [Bye("the agent was ended by SIGTERM")]
    assert agent.end() == 0
    until(lambda: gone(pid))


def test_a_file_size_limit_loses_no_frame(node: Node) -> None:
    script = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))\n"
        "from gswarm_agent.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    agent = Agent(sys.executable, "-c", script, *node.words("--memory-mib", "0.005")[3:])
    node.agents.append(agent)
    agent.start(100)
    (hello,) = agent.hear(Hello)
    agent.hear(Frame, 15)
    disconnect(agent)
    second = node.attach()
    hear_of(second, hello.life, 20)
    found = sequences(second, hello.life)
    assert found == list(range(1, len(found) + 1))
    assert sum(name.endswith(".frames") for name in node.files()) > 1


@pytest.mark.root("be somebody else")
def test_a_folder_of_another_user_is_refused(node: Node) -> None:
    node.folder.mkdir(mode=0o700)
    os.chown(node.folder, 65534, 65534)
    agent = node.attach()
    assert agent.end() == 1
    assert agent.process.stderr is not None
    said = agent.process.stderr.read().decode()
    assert said == f"gswarm-agent: no private folder can be opened: {node.folder}: it belongs to nobody\n"


@pytest.mark.parametrize("link", ["spool", "spool/rec@n1"])
def test_a_symbolic_link_in_place_of_the_folder_is_refused(node: Node, tmp_path: Path, link: str) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    if link != "spool":
        node.folder.mkdir(mode=0o700)
    (tmp_path / link).symlink_to(tmp_path / "elsewhere")
    assert node.attach().end() == 1
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_all_files_of_the_agent_are_private_to_the_user(node: Node) -> None:
    agent = node.attach(options=("--memory-mib", "0.005"))
    until(lambda: any(name.endswith(".frames") for name in node.files()))
    folders = [node.folder, node.folder / "rec@n1"]
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}
    files = [path for path in (node.folder / "rec@n1").iterdir() if not path.is_socket()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    agent.hear(Hello)


@pytest.mark.root("be somebody else")
def test_a_connection_of_another_user_is_closed(node: Node) -> None:
    agent = node.attach()
    agent.hear(Hello)
    script = (
        "import os, socket, sys\n"
        "os.chdir(sys.argv[1]); os.chmod('.', 0o755); os.chmod('serve', 0o777)\n"
        "os.setresuid(65534, 65534, 65534)\n"
        "one = socket.socket(socket.AF_UNIX); one.connect('serve'); print(one.recv(100))\n"
    )
    words = [sys.executable, "-c", script, str(node.folder / "rec@n1")]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "b''\n"
    agent.hear(Frame, len(agent.hear(Frame)) + 2)


def changed(node: Node, script: str) -> Agent:
    """Start the node's agent after a script that patches its simulated node, ``s.SimulatedNode``."""
    begin, end = (
        "import sys, gswarm_agent.simulated as s\n",
        "from gswarm_agent.__main__ import main; sys.exit(main(sys.argv[1:]))\n",
    )
    agent = Agent(sys.executable, "-c", begin + script + end, *node.words()[3:])
    node.agents.append(agent)
    agent.start()
    return agent


def test_a_failing_probe_is_reported_and_earlier_frames_are_kept(node: Node) -> None:
    script = (
        "read, times = s.SimulatedNode.read, []\n"
        "def broken(self, now, fresh):\n"
        "    times.append(now)\n"
        "    if len(times) > 3: raise RuntimeError('the bus fell off')\n"
        "    return read(self, now)\n"
        "s.SimulatedNode.read = broken\n"
    )
    agent = changed(node, script)
    (hello,) = agent.hear(Hello)
    assert agent.hear(Bye) == [Bye("the agent failed: RuntimeError: the bus fell off")]
    assert sequences(agent, hello.life) == [1, 2, 3]
    until(lambda: node.waiting() == {hello.life: 3})


def test_an_agent_with_hanging_gpus_still_sends_its_hello(node: Node, tmp_path: Path) -> None:
    answers = tmp_path / "answers"
    script = (
        "import os, time\n"
        "read = s.SimulatedNode.read\n"
        "def hanging(self, now, fresh):\n"
        f"    while not os.path.exists({str(answers)!r}): time.sleep(0.02)\n"
        "    return read(self, now)\n"
        "s.SimulatedNode.read = hanging\n"
    )
    agent = changed(node, script)
    (hello,) = agent.hear(Hello)
    assert not any(isinstance(message, Frame) for message in agent.heard)
    answers.touch()
    agent.hear(Frame, 2)
    assert sequences(agent, hello.life)[:2] == [1, 2]


def test_a_metric_that_disappears_is_reported_in_the_same_life(node: Node) -> None:
    script = (
        "from dataclasses import replace\n"
        "from gswarm_agent.frame import Note\n"
        "read, facts, times = s.SimulatedNode.read, s.SimulatedNode.facts, []\n"
        "def losing(self, now, fresh):\n"
        "    times.append(now)\n"
        "    notes = (Note('unmeasured', 'warning', 'gone'),) if len(times) == 3 else ()\n"
        "    return replace(read(self, now), notes=notes)\n"
        "def lost(self):\n"
        "    host, gpus, reasons = facts(self)\n"
        "    return host, gpus, {**reasons, **({'power_w': 'gone'} if len(times) > 2 else {})}\n"
        "s.SimulatedNode.read, s.SimulatedNode.facts = losing, lost\n"
    )
    agent = changed(node, script)
    before, after = agent.hear(Hello, 2)
    assert before.life == after.life
    assert "power_w" not in before.capabilities
    assert after.capabilities["power_w"] == "gone"
    hear_of(agent, before.life, 6)
    again = node.attach()
    assert again.hear(Hello)[0].capabilities == after.capabilities


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "error: the following arguments are required: COMMAND"),
        (["stream", "--fast"], "error: unrecognized arguments: --fast"),
        (["attach"], "attach needs --recording UID"),
        (["attach", "--recording", "../x"], "attach needs --recording UID"),
        (["attach", "--recording", "a", "--node", "b/c"], "attach needs --recording UID"),
        (["attach", "--recording", "a", "--linger", "soon"], "invalid float value: 'soon'"),
    ],
)
def test_invalid_options_get_one_sentence(words: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gswarm_agent", *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_status_is_json_after_the_wires_first_line(node: Node) -> None:
    agent = node.attach()
    agent.hear(Frame, 2)

    def status(*words: str) -> list[dict[str, Any]]:
        command = [sys.executable, "-m", "gswarm_agent", "status", "--folder", str(node.folder), *words]
        said = subprocess.run(command, capture_output=True, check=True).stdout
        assert said.startswith(MAGIC)
        found: list[dict[str, Any]] = json.loads(said.removeprefix(MAGIC))
        return found

    (entry,) = status()
    assert (entry["recording"], entry["node"], entry["pid"]) == ("rec", "n1", node.pid)
    (waiting,) = entry["lives"]
    assert set(waiting) == {"life", "frames"}
    assert waiting["frames"] >= 2
    assert status("--recording", "other") == []
