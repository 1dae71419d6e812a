"""Mutated streams from nodes, in the short form of the long run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gswarm_tui.cli import main
from tests.security.mutated_streams import send


@pytest.mark.parametrize("seed", [1, 2])
def test_mutated_streams_cost_only_their_link(tmp_path: Path, seed: int) -> None:
    outcome = asyncio.run(send(tmp_path / "run.duckdb", 400, seed))
    assert outcome.errors == []
    assert outcome.status.error == ""
    assert outcome.frames > 400, "most streams are valid up to their mutation"
    assert main(["sessions", "--db", str(tmp_path / "run.duckdb")]) == 0
    assert main(["summary", "recording 1", "--db", str(tmp_path / "run.duckdb"), "--format", "csv"]) == 0
