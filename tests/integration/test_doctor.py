"""``gswarm-tui doctor`` as a process, over a real sshd: text, JSON, exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.sshd import SshServer, free_port, running


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SshServer]:
    home = tmp_path / "home"
    home.mkdir()
    with running(tmp_path, SetEnv=f"HOME={home} XDG_CACHE_HOME={home}/cache") as server:
        server.trust()
        yield server


def environment(folder: Path) -> dict[str, str]:
    environ = {**os.environ, "HOME": str(folder), "XDG_STATE_HOME": str(folder / "state"), "PYTHONUTF8": "1"}
    environ.pop("SLURM_JOB_ID", None)
    return environ


def doctor(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gswarm_tui", "doctor", *words],
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_nodes_are_checked_and_the_failing_one_is_named(server: SshServer, tmp_path: Path) -> None:
    config = server.config("Host closed1", "  HostName 127.0.0.1", f"  Port {free_port()}")
    done = doctor(tmp_path, "--nodes", "gpu01", "closed1", "--ssh-config", config)
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("here: Python 3.")
    (row,) = (line for line in lines if line.startswith("closed1 "))
    assert "failed to connect" in row
    assert "To fix:" in lines
    assert (
        "  closed1: failed to connect: it refuses connections: nothing listens on its SSH port; try "
        f"`ssh -F {config} closed1`."
    ) in lines
    assert lines[-1].startswith("1 of 2 nodes ready, ")


def test_json_holds_the_whole_report(server: SshServer, tmp_path: Path) -> None:
    done = doctor(tmp_path, "--nodes", "gpu01", "--ssh-config", server.config(), "--json")
    report = json.loads(done.stdout)
    (node,) = report["nodes"]
    assert node["failed_step"] == ""
    assert node["kernel"] == os.uname().release
    assert node["clock_offset_ms"] == pytest.approx(0, abs=1000)
    assert node["spool_free_mib"] > 0
    assert report["here"]["python_version"] == ".".join(map(str, sys.version_info[:3]))
    assert done.returncode == (1 if any(each["fix"] for each in report["findings"]) else 0)


def test_without_nodes_this_machine_is_checked(tmp_path: Path) -> None:
    done = doctor(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert any(
        line.startswith("  here: only this machine was checked: no nodes: use --nodes") for line in lines
    )
    assert lines[-1] == "no node checked, nothing to fix."


SCONTROL = """\
#!/bin/sh
echo "JobId=7 JobName=train"
echo "   UserId=me($(id -u)) GroupId=me"
echo "   JobState=RUNNING Reason=None Dependency=(null)"
echo "   NodeList=gpu[01-02]"
"""
SRUN = """\
#!/bin/sh
case "$*" in *--nodelist=gpu01*) echo >>started; cat >/dev/null; echo >>started; exit;; esac
trap 'echo >step-ended; exit' TERM
echo >>started
sleep 60 & wait
"""
"""A step that ends with its input, and one that has to be ended by SIGTERM, as srun ends its tasks."""


@pytest.mark.parametrize("signals", [1, 2])
def test_ctrl_c_ends_all_steps_even_if_one_ends_early(signals: int, tmp_path: Path) -> None:
    programs, started = tmp_path / "bin", tmp_path / "started"
    programs.mkdir()
    for name, script in (("scontrol", SCONTROL), ("srun", SRUN)):
        (programs / name).write_text(script)
        (programs / name).chmod(0o700)
    os.mkfifo(started)
    environ = environment(tmp_path)
    environ["PATH"] = f"{programs}:{environ['PATH']}"
    command = [sys.executable, "-m", "gswarm_tui", "doctor", "--launcher", "srun", "--job", "7"]
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL) as checking:
        lines = ""
        while len(lines) < 2:
            lines += started.read_text()
        checking.send_signal(signal.SIGINT)
        started.read_text()  # the first step's input ended
        if signals == 2:
            checking.send_signal(signal.SIGINT)
        assert checking.wait() == 130
    assert (tmp_path / "step-ended").exists()
