"""A neighbour creates the folders of heads and agents first: the owner is named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from gswarm_agent import folder, trace
from gswarm_agent.folder import Folder, FolderError, tops
from gswarm_tui.commands.recording_choice import open_source
from gswarm_tui.common.errors import UserError
from gswarm_tui.control import registry
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.link.hub import Hub
from gswarm_tui.run import arming, log_file
from gswarm_tui.store.errors import FileInUseError
from tests.tui.client import control_server
from tests.unit.store_recording import T0

NOBODY = 65534


def taken(path: Path, mode: int = 0o700) -> str:
    """Make a folder that belongs to another user."""
    path.mkdir(parents=True, mode=mode)
    os.chown(path, NOBODY, NOBODY)
    return str(path)


@pytest.fixture
def agents_tops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the agents' two folders, both taken."""
    parents = tmp_path / "var", tmp_path / "tmp"
    monkeypatch.setattr(folder, "PARENTS", tuple(map(str, parents)))
    return [taken(parent / f"gswarm-tui-{os.geteuid()}") for parent in parents]


@pytest.mark.root("give folders away")
def test_agent_names_the_owners_if_no_folder_can_be_used(agents_tops: list[str]) -> None:
    with pytest.raises(FolderError) as caught:
        Folder.find(tops(), "rec@n1")
    assert str(caught.value) == (
        f"no private folder can be opened: {agents_tops[0]}: it belongs to nobody; "
        f"{agents_tops[1]}: it belongs to nobody"
    )


@pytest.mark.root("give folders away")
def test_command_is_not_armed_for_traces_in_the_folder_of_another_user(
    agents_tops: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Kineto obeys whoever answers in that folder, and writes traces where it is told to."""
    armed = arming.arm(["sleep", "1"], {"PATH": ""}, "12345678-rec")
    assert not [name for name in armed if name.startswith("KINETO")]
    assert f"no Kineto: {agents_tops[0]}: it belongs to nobody\n" in capsys.readouterr().err


@pytest.mark.root("give folders away")
def test_node_whose_socket_folder_is_taken_has_no_traces_and_says_why(agents_tops: list[str]) -> None:
    assert trace.obstacles("1a2b3c4d-5e6f") == {"traces": f"{agents_tops[0]}: it belongs to nobody"}
    os.chown(agents_tops[0], os.geteuid(), os.getegid())
    path = taken(Path(agents_tops[0]) / "kineto-1a2b3c4d")
    assert trace.obstacles("1a2b3c4d-5e6f") == {"traces": f"{path}: it belongs to nobody"}


@pytest.mark.root("give folders away")
def test_head_logs_into_no_state_folder_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = taken(tmp_path / "gswarm-tui", 0o777)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(UserError) as caught:
        log_file.begin()
    assert str(caught.value) == f"{folder} belongs to another user; set XDG_STATE_HOME to a folder of yours."


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """Return the environment of a login without runtime folder; a neighbour owns the heads' folder."""
    monkeypatch.setattr(registry, "SHARED", taken(tmp_path / "heads"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return {"HOME": str(tmp_path)}


@pytest.mark.root("give folders away")
def test_sql_says_that_it_cannot_reach_the_head(tmp_path: Path, environ: Mapping[str, str]) -> None:
    path = tmp_path / "live.duckdb"
    code = (
        "import sys\n"
        "from tests.unit.store_recording import *\n"
        "recorder = FileWriter(Path(sys.argv[1]), INFO, lambda _status: None)\n"
        "recorder.open(); print('open', flush=True); input()\n"
    )
    with pytest.raises(OSError, match="heads: it belongs to nobody"):
        control_server(Hub(Fleet(("n1",)), clock=lambda: T0), None, environ)
    program = tmp_path / "gswarm-tui"
    program.write_text(code)
    with subprocess.Popen(
        [sys.executable, str(program), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
        with pytest.raises(FileInUseError) as caught:
            open_source(path, environ)
        writer.kill()
    assert f", process {writer.pid}; " in str(caught.value)
    assert str(caught.value).endswith("; it doesn't answer; end that process, or name another file with --db")
