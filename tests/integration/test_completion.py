"""Completion in real shells: commands, options, values, sessions and recordings."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from gswarm_tui.commands.completion import SHELLS
from gswarm_tui.control.intents import StartSession
from tests.integration.test_control import RunningHead
from tests.integration.test_control_commands import head
from tests.terminal import InTerminal
from tests.tui.client import carry_out

PROGRAM = 'import sys; from gswarm_tui.cli import main; sys.argv[0] = "gswarm-tui"; sys.exit(main())'
SESSION = "warmup-7f3a"
"""No other head on this machine has a session of this name."""
INTERACTIVE = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], 'eval "$(gswarm-tui completion bash)"; echo read\\y'),
    "zsh": (
        ["zsh", "-f", "-i"],
        'autoload -U compinit; compinit -u -D; eval "$(gswarm-tui completion zsh)"; echo read\\y',
    ),
    "fish": (
        ["setsid", "--ctty", "--wait", "fish", "--no-config", "-i"],
        "gswarm-tui completion fish | source; echo read\\y",
    ),
}
INSTALLED = [shell for shell in SHELLS if shutil.which(shell)]


@pytest.fixture
def environ(tmp_path: Path) -> Mapping[str, str]:
    """Return the environment of a shell that finds gswarm-tui and heads of its own."""
    program = tmp_path / "bin" / "gswarm-tui"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -P -c '{PROGRAM}' \"$@\"\n")
    program.chmod(0o700)
    (tmp_path / "run").mkdir(mode=0o700)
    return {
        **os.environ,
        "HOME": str(tmp_path),
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TERM": "xterm",
        "XDG_RUNTIME_DIR": str(tmp_path / "run"),
    }


@pytest.fixture
async def running(tmp_path: Path, environ: Mapping[str, str]) -> AsyncIterator[RunningHead]:
    async with head(tmp_path / "live.duckdb", environ) as running:
        carry_out(running.hub, StartSession(SESSION))
        yield running


def completions(environ: Mapping[str, str], folder: Path, line: str) -> list[str]:
    """Return what the program suggests to a shell for a line."""
    file = folder / "suggested"
    asking = {
        **environ,
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(file),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    done = subprocess.run(["gswarm-tui"], cwd=folder, env=asking, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return file.read_text().splitlines()


@pytest.mark.parametrize("shell", INSTALLED)
async def test_tab_completes_in_a_shell(
    running: RunningHead, environ: Mapping[str, str], tmp_path: Path, shell: str
) -> None:
    def type_lines() -> None:
        command, setup = INTERACTIVE[shell]
        with InTerminal(command, size=(120, 30), env=environ, folder=tmp_path) as terminal:
            terminal.press(f"{setup}\r")
            terminal.wait_for("ready")
            for typed, completed in (
                ("gswarm-tui recov", "gswarm-tui recover"),
                ("gswarm-tui --launcher loc", "gswarm-tui --launcher local"),
                ("gswarm-tui session stop warmup-7", f"gswarm-tui session stop {SESSION}"),
            ):
                terminal.press(f"{typed}\t")
                terminal.wait_for(completed)
                terminal.press("\x15")  # delete the line
            terminal.press("exit\r")
            terminal.exit_status()

    await asyncio.to_thread(type_lines)


def test_every_command_suggests_its_options(environ: Mapping[str, str], tmp_path: Path) -> None:
    from gswarm_tui.options.command_table import COMMAND_NAMES

    for name in COMMAND_NAMES:
        found = completions(environ, tmp_path, f"gswarm-tui {name} --hel")
        assert [word.strip() for word in found] == ["--help"], name
