"""Fixtures of the unit tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.probe_stage import Stage


@pytest.fixture
def stage(standin_lib: Path, tmp_path: Path) -> Stage:
    return Stage(standin_lib, tmp_path / "node.scenario")
