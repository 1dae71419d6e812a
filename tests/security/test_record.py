"""Recorder without a screen: a file replaced while it was down, and a command with an unprintable name."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import duckdb

from gswarm_tui.cli import main
from tests.integration.heads import eventually, nothing_left
from tests.integration.test_record import UNTIL_INPUT_ENDS, ended_recordings, record
from tests.security.test_crashes import state
from tests.unit.store_recording import query


def test_restarted_recorder_obeys_no_options_that_were_put_into_its_file(tmp_path: Path) -> None:
    """Whoever can replace the file while the recorder is down could else run commands as its user."""
    path, theirs = tmp_path / "run.duckdb", tmp_path / "theirs.duckdb"
    ran, config = tmp_path / "ran", tmp_path / "ssh_config"
    config.write_text(f"Host *\n  ProxyCommand touch {ran}\n")
    words = ("--launcher", "local", "--interval", "0.2", "--", *UNTIL_INPUT_ENDS)
    with nothing_left(path), record(tmp_path, *words) as running:
        running.wait_for("1 node sends data")
        recorder = running.recorder()
        running.process.send_signal(signal.SIGSTOP)
        os.kill(recorder, signal.SIGKILL)
        eventually(lambda: state(recorder) == "Z", "the recorder's end")
        for suffix in ("", ".wal"):
            shutil.copy(f"{path}{suffix}", f"{theirs}{suffix}")
        with duckdb.connect(str(theirs)) as connection:
            ((text,),) = connection.execute("SELECT options FROM recordings").fetchall()
            options = json.loads(text) | {"launcher": "ssh", "ssh_config": str(config)}
            connection.execute("UPDATE recordings SET options = ?", [json.dumps(options)])
        theirs.rename(path)
        path.with_name(f"{path.name}.wal").unlink()
        running.process.send_signal(signal.SIGCONT)
        running.wait_for("restarting it")
        running.wait_for("1 node sends data")
        assert running.end()[0] == 3
    assert not ran.exists()
    assert ended_recordings(tmp_path) == [(True,)]


def test_command_with_a_name_that_is_no_text_is_recorded_to_its_end(tmp_path: Path) -> None:
    command = tmp_path / os.fsdecode(b"train\xff\x1b[2J")
    command.write_text("#!/bin/sh\ncat\nexit 5\n")
    command.chmod(0o700)
    with record(tmp_path, "--demo", "1x1", "--interval", "0.1", "--", str(command)) as running:
        running.wait_for("1 node sends data")
        assert running.end()[0] == 5
    said = "".join(running.lines)
    assert "Traceback" not in said
    assert "\x1b" not in said
    assert "train\\udcff\\x1b[2J ended with status 5" in said
    assert "utilisation" in said, "the summary"
    assert ended_recordings(tmp_path) == [(True,)]
    names = query(tmp_path / "run.duckdb", "SELECT name FROM sessions")
    assert names == [("train\\udcff\\x1b[2J",)]


def test_session_name_of_120_kilobytes_leaves_the_recording_readable(tmp_path: Path) -> None:
    with record(tmp_path, "--demo", "1x1", "--name", "é" * 60_000, "--", "true") as running:
        assert running.end()[0] == 0
    assert query(tmp_path / "run.duckdb", "SELECT length(name) FROM sessions") == [(200,)]
    assert main(["sessions", "--db", str(tmp_path / "run.duckdb")]) == 0
