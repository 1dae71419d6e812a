"""Nodes of a host file through a whole command: the source is shown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.sshd import free_port


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return an SSH configuration with which no node can be reached."""
    path = tmp_path / "ssh_config"
    path.write_text(f"Host *\n  HostName 127.0.0.1\n  Port {free_port()}\n")
    return path


def gswarm(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "HOME": str(folder), "XDG_STATE_HOME": str(folder), "PYTHONUTF8": "1"}
    return subprocess.run(
        [sys.executable, "-m", "gswarm_tui", *words],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_record_names_the_host_file_of_its_nodes(tmp_path: Path, config: Path) -> None:
    (tmp_path / "hosts.txt").write_text("gpu[07-08] slots=8\n")
    words = ("--hostfile", "hosts.txt", "--ssh-config", str(config), "--", "true")
    done = gswarm(tmp_path, "record", *words)
    assert "gswarm-tui: recording 2 nodes (gpu[07-08]) of host file hosts.txt into " in done.stderr
