"""Fixtures of the unit tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.agent_process import Agent


@pytest.fixture
def agents() -> Iterator[list[Agent]]:
    """Agents that the test starts; none outlives it."""
    started: list[Agent] = []
    yield started
    for agent in started:
        agent.kill()
