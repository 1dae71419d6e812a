"""Commands report a head or an agent that doesn't answer, instead of waiting for it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gswarm_agent import mark
from gswarm_agent.folder import SOCKET
from gswarm_agent.frame import Frame
from gswarm_tui import cli
from tests.integration.agent_node import Node
from tests.integration.heads import eventually, head
from tests.recorders import recorder_of


def is_stopped(pid: int) -> bool:
    return " T " in Path(f"/proc/{pid}/stat").read_text()


@contextmanager
def suspended(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: is_stopped(pid), "the process stops")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def full_queue(address: Path) -> Iterator[None]:
    """Connect to a socket that accepts nothing, until the kernel's queue is full."""
    with ExitStack() as clients:
        while True:
            client = clients.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            try:
                client.connect(str(address))
            except BlockingIOError:
                break
        yield


@pytest.mark.parametrize("full", [False, True])
def test_commands_report_a_suspended_head(
    full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    runtime, path = Path(os.environ["XDG_RUNTIME_DIR"]), tmp_path / "run.duckdb"
    with head("--demo", "1x1", "--db", str(path)) as running, ExitStack() as stack:
        running.wait_for(" rows")
        (address,) = (runtime / "gswarm-tui").glob(f"*/{SOCKET}")
        recorder = recorder_of(path)
        resume = f"kill -s CONT -- -{recorder}"  # dash refuses -CONT --
        expected = (
            f"{path} is being recorded by gswarm-tui, process {recorder}, which doesn't answer; if it is "
            f"suspended, resume it with {resume}, else end it with kill -9 {recorder}."
        )
        with suspended(recorder), monkeypatch.context() as patch:
            patch.setattr("gswarm_tui.control.client.TIMEOUT_S", 0.5)
            if full:
                stack.enter_context(full_queue(address))
            for words in (
                ["sql", "SELECT 1"],
                ["summary"],
                ["mark", "here"],
                ["mark", "here", "--at", "-2s"],
                ["status"],
                ["session", "stop"],
                ["interval"],
            ):
                assert cli.main([*words, "--db", str(path)]) == 1
                captured = capsys.readouterr()
                assert captured.out == ""
                assert " ".join(captured.err.split()) == f"gswarm-tui: {expected}"
            subprocess.run(["sh", "-c", resume], check=True)
            eventually(lambda: not is_stopped(recorder), "the recorder continues")
        assert cli.main(["mark", "here", "--db", str(path)]) == 0
        assert capsys.readouterr().out == "marked in 1 recording\n"
        assert cli.main(["sql", "SELECT 41 + 1 AS figure", "--db", str(path), "--format", "csv"]) == 0
        assert capsys.readouterr().out == "figure\n42\n"


@pytest.mark.parametrize("full", [False, True])
def test_mark_reports_a_suspended_agent(full: bool, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mark, "_TIMEOUT_S", 0.5)
    node.attach().hear(Frame)
    (address,) = node.folder.glob(f"*/{SOCKET}")
    with suspended(node.pid), ExitStack() as stack:
        if full:
            stack.enter_context(full_queue(address))
        marked = mark.send("here", {}, top=str(node.folder))
    assert marked.recordings == []
    (problem,) = marked.problems
    assert problem.startswith("recording rec didn't take the mark: its agent doesn't answer")
