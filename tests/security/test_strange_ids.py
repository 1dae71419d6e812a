"""Hostile recording IDs run no commands on nodes and lead to no other folder."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from gswarm_tui.options.arguments import parse
from gswarm_tui.run import interrupted
from gswarm_tui.run.finish import finish
from gswarm_tui.run.plan import Plan
from gswarm_tui.run.saved_options import save_options
from gswarm_tui.store.recording.recorder import FileWriter
from tests.integration.sshd import SSHD, running
from tests.unit.store_recording import INFO

SETTINGS = parse([], {"HOME": "/nowhere"})
STRANGE = ["x'$(touch {})'", "x'& touch {}; '", "../x", "--folder", "x" * 101]


def left_open(path: Path, uid: str, config: Path | None) -> None:
    """Make an interrupted recording of gpu01 with this ID."""
    options = save_options(SETTINGS._replace(ssh_config=config), Plan(("gpu01",)))
    recorder = FileWriter(path, replace(INFO, uid=uid, options=options), lambda _status: None)
    recorder.open()
    recorder.close(None)


@pytest.mark.parametrize("uid", STRANGE)
async def test_recording_with_a_strange_id_runs_nothing_on_its_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: str
) -> None:
    if SSHD is None:
        pytest.skip("no sshd on this machine")
    monkeypatch.setenv("HOME", str(tmp_path))
    evil, path, out = tmp_path / "evil", tmp_path / "run.duckdb", StringIO()
    with running(tmp_path, SetEnv=f"XDG_CACHE_HOME={tmp_path}/cache") as server:
        server.trust()
        left_open(path, uid.replace("{}", str(evil)), Path(server.config()))
        found, unreadable = interrupted.find(tmp_path, path)
        assert interrupted.show(found, unreadable, out, tmp_path) == 0
        assert await finish(replace(found[0], trusted=True), SETTINGS, out) == 0
    assert not evil.exists()
    assert not (tmp_path / "cache").exists(), "no agent was started"
    headline, _, closed = out.getvalue().splitlines()
    assert headline.startswith("1 "), "it has its number instead of the ID"
    assert "recording 1 is closed; 0 frames" in closed


@pytest.mark.parametrize("uid", ["3fa85f64-5717-4562-b3fc-2c963f66afa6", "a1-0", "e4d0"])
def test_usual_id_is_kept(tmp_path: Path, uid: str) -> None:
    left_open(tmp_path / "run.duckdb", uid, None)
    ((one,), _) = interrupted.find(tmp_path, tmp_path / "run.duckdb")
    assert one.interrupted.uid == uid
