"""Fixtures of tests with real processes: agents, and a node with a simulated NVML."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.agent_node import Node, kill, running_in
from tests.integration.agent_process import Agent
from tests.integration.probe_stage import Stage


@pytest.fixture
def agents() -> Iterator[list[Agent]]:
    """Start agents, which are killed at the end of the test."""
    started: list[Agent] = []
    yield started
    for agent in started:
        agent.kill()


@pytest.fixture
def node(tmp_path: Path, agents: list[Agent]) -> Iterator[Node]:
    """Return a node whose processes end with the test."""
    node = Node(tmp_path / "spool", agents)
    yield node
    for agent in agents:
        agent.process.kill()
    for pid in running_in(node.folder):
        kill(pid)


@pytest.fixture
def stage(standin_lib: Path, tmp_path: Path) -> Stage:
    return Stage(standin_lib, tmp_path / "node.scenario")
