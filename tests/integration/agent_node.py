"""Test node: a folder as a node's disk, real agents on it, and heads that connect to them."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gswarm_agent.attach import status
from gswarm_agent.frame import Frame, Hello
from tests.integration.agent_process import PATIENCE_S, Agent


class Node:
    """A node's disk, and the agents that run there."""

    def __init__(self, folder: Path, agents: list[Agent]) -> None:
        self.folder = folder
        self.agents = agents

    def words(self, *more: str) -> list[str]:
        command = [sys.executable, "-m", "gswarm_agent", "attach", "--recording", "rec", "--node", "n1"]
        return [*command, "--folder", str(self.folder), "--simulate", '{"gpus": 2}', *more]

    def attach(
        self, *resume: tuple[str, int], options: tuple[str, ...] = (), interval_ms: int = 100
    ) -> Agent:
        """Connect a head that has the frames up to these sequence numbers by life."""
        agent = Agent(*self.words(*options))
        self.agents.append(agent)
        agent.start(interval_ms, *resume)
        return agent

    def status(self) -> list[dict[str, Any]]:
        return status(top=str(self.folder))

    @property
    def pid(self) -> int:
        """The pid of the agent."""
        (entry,) = self.status()
        assert entry["pid"] is not None
        return int(entry["pid"])

    def waiting(self) -> dict[str, int]:
        """The number of waiting frames by life."""
        return {life["life"]: life["frames"] for entry in self.status() for life in entry["lives"]}

    def files(self) -> list[str]:
        """The files in the recording's folder."""
        return sorted(path.name for path in self.folder.glob("rec@n1/*"))


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    """Return whether a process has ended; a daemon has no parent that knows its status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
    until(lambda: gone(pid))


def running_in(folder: Path) -> list[int]:
    """Return the processes with this folder on their command line, even if it was removed."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if str(folder).encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def sequences(agent: Agent, life: str) -> list[int]:
    """Return the sequence numbers of a life's frames that came over one connection."""
    found, current = [], ""
    for message in agent.heard:
        if isinstance(message, Hello):
            current = message.life
        elif isinstance(message, Frame) and current == life:
            found.append(message.seq)
    return found


def lives(agent: Agent) -> list[str]:
    return [message.life for message in agent.heard if isinstance(message, Hello)]


def hear_of(agent: Agent, life: str, seq: int) -> None:
    """Read until a frame of a life has arrived."""
    while seq not in sequences(agent, life):
        agent.hear(Frame, sum(isinstance(m, Frame) for m in agent.heard) + 1)


def disconnect(agent: Agent) -> None:
    assert agent.process.stdin is not None
    agent.process.stdin.close()
    assert agent.end() == 0
