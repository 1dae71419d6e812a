"""The bundled agent runs with every supported Python version on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gswarm_agent.frame import Frame, Hello
from gswarm_agent.wire import MAGIC, Ack, Bye, Stop
from gswarm_tui.launch.bundle import own_bundle
from tests.agent_pythons import VERSIONS, agent_pythons
from tests.integration.agent_node import Node, disconnect, gone, sequences, until
from tests.integration.agent_process import Agent


@pytest.fixture(scope="module")
def run_py(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the agent's start script in a folder with only the bundle."""
    folder = tmp_path_factory.mktemp("bundle")
    for name, content in own_bundle().files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder / "gswarm_agent/run.py"


@pytest.fixture(params=list(agent_pythons()))
def command(request: pytest.FixtureRequest, run_py: Path) -> Callable[..., list[str]]:
    """Return the agent's command line with one Python."""
    python = agent_pythons()[request.param]
    return lambda *arguments: [python, "-ISB", str(run_py), *arguments]


def test_this_python_is_among_those_that_are_tested() -> None:
    assert sys.executable in agent_pythons().values()
    assert set(agent_pythons()) <= set(VERSIONS)


def test_an_agent_measures_marks_spools_and_ends(node: Node, command: Callable[..., list[str]]) -> None:
    attach = (
        "attach", "--recording", "rec", "--node", "n1", "--folder", str(node.folder), "--memory-mib", "0.01",
        "--simulate", '{"gpus": 2}',
    )  # fmt: skip
    first = Agent(*command(*attach))
    node.agents.append(first)
    first.start(100)
    (hello,) = first.hear(Hello)
    assert first.hear(Frame, 3)[0].gpus.count == 2

    mark = command("mark", "epoch", "--value", "loss=0.5", "--folder", str(node.folder))
    done = subprocess.run(mark, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("marked in 1 recording\n", "")
    while not any(note.kind == "mark" for frame in first.hear(Frame) for note in frame.notes):
        first.hear(Frame, len(first.hear(Frame)) + 1)

    disconnect(first)
    until(lambda: any(name.endswith(".frames") for name in node.files()))
    status = command("status", "--folder", str(node.folder))
    said = subprocess.run(status, capture_output=True, check=True).stdout
    (entry,) = json.loads(said.removeprefix(MAGIC))
    assert entry["lives"][0]["life"] == hello.life

    second = Agent(*command(*attach))
    node.agents.append(second)
    second.start(100)
    second.hear(Frame, entry["lives"][0]["frames"])
    seen = sequences(second, hello.life)
    assert seen == list(range(1, len(seen) + 1))
    server = node.pid
    second.say(Stop(), Ack(hello.life, 10**6))
    assert second.hear(Bye) == [Bye("asked to stop")]
    assert second.end() == 0
    until(lambda: gone(server))
    assert list(node.folder.iterdir()) == []


def test_an_agent_without_a_recording_ends_with_its_head(
    agents: list[Agent], command: Callable[..., list[str]]
) -> None:
    agent = Agent(*command("stream", "--simulate", '{"gpus": 2}'))
    agents.append(agent)
    agent.start(100)
    assert agent.hear(Frame, 2)[1].gpus.count == 2
    assert agent.process.stdin is not None
    agent.process.stdin.close()
    assert agent.end() == 0
    assert agent.process.stderr is not None
    assert agent.process.stderr.read() == b""
