"""Places on a node for traces of the job's processes: made privately, removed when nobody needs them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from gswarm_agent import folder, trace

RECORDING = "1a2b3c4d-5e6f-4711-8000-0123456789ab"


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the agents' folder on a machine without any."""
    monkeypatch.setattr(folder, "PARENTS", (str(tmp_path / "var"),))
    (tmp_path / "var").mkdir()
    return tmp_path / "var" / f"gswarm-tui-{os.geteuid()}"


def test_socket_folder_is_private_and_short_enough_for_the_sockets_of_any_user(top: Path) -> None:
    assert trace.obstacles(RECORDING) == {}
    made = Path(trace.socket_folder(RECORDING))
    assert made == top / "kineto-1a2b3c4d"
    assert made.stat().st_mode & 0o777 == 0o700
    longest = "/var/tmp/gswarm-tui-4294967294/kineto-1a2b3c4d/dynoconfigclient" + "u" * 36
    assert len(longest) <= 107


def test_socket_folder_that_others_may_enter_is_refused(top: Path) -> None:
    top.mkdir(mode=0o755)
    assert trace.obstacles(RECORDING) == {"traces": f"{top}: others may enter it"}


def test_socket_folder_stays_while_its_recording_has_a_folder_here(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace.make_socket_folder(RECORDING)
    (top / f"{RECORDING}@gpu01").mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        monkeypatch.chdir(trace.socket_folder(RECORDING))  # the whole path is too long here
        client.bind("dynoconfigclient-1")
    trace.remove_places(RECORDING)
    assert Path(trace.socket_folder(RECORDING)).exists()
    (top / f"{RECORDING}@gpu01").rmdir()
    trace.remove_places(RECORDING)
    assert list(top.iterdir()) == []


def test_socket_folder_with_a_trace_stays(top: Path) -> None:
    trace.make_socket_folder(RECORDING)
    kept = Path(trace.socket_folder(RECORDING)) / "trace.json"
    kept.write_text("{}")
    trace.remove_places(RECORDING)
    assert kept.exists()
