"""The skill for coding agents: its examples run on a recording and print what it says."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from gswarm_tui.cli import main
from tests.docs.example import DATABASE, record_example

SKILL = files("gswarm_tui").joinpath("SKILL.md").read_text()
TRAINING = """
import contextlib, io, time

from gswarm_tui.cli import main

has_samples = ["sql", "--format", "csv", "SELECT count(*) > 1 AS found FROM host_samples"]
printed = io.StringIO()
while "true" not in printed.getvalue():
    time.sleep(0.2)
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        main(has_samples)
print("trained")
"""
RECORDING = (sys.executable, "-m", "gswarm_tui", "record", "--")
READING = {"sessions", "summary", "sql", "compare"}
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", SKILL, re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Ran:
    """Result of one example, and the folder in which it ran."""

    status: int
    out: str
    problem: str
    folder: Path


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """Run each example as an agent would, beside a recording, on the nodes of a job: here, this machine.

    Those that only read a recording run in this process.
    """
    recording = tmp_path_factory.mktemp("recording")
    record_example(recording)
    results = {}
    for block in BLOCKS:
        folder = tmp_path_factory.mktemp("example")
        shutil.copy(recording / DATABASE, folder)
        (folder / "train.py").write_text(TRAINING)
        environ = {
            "HOME": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_RUNTIME_DIR": str(folder),
            "GSWARM_TUI_LAUNCHER": "local",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        commands = [shlex.split(words) for words in re.split("^gswarm-tui ", block, flags=re.MULTILINE)[1:]]
        here = {words[0] for words in commands} <= READING
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            for name, value in environ.items():
                patch.setenv(name, value)
            results[block] = in_this_process(commands, folder) if here else in_bash(block, folder)
    return results


def in_this_process(commands: list[list[str]], folder: Path) -> Ran:
    """Run commands until one fails."""
    out, problem = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(problem):
        status = next(filter(None, map(main, commands)), 0)
    return Ran(status, out.getvalue(), problem.getvalue(), folder)


def in_bash(block: str, folder: Path) -> Ran:
    """Run an example as a script, within a recording if it asks for the running one."""
    done = subprocess.run(
        [*(RECORDING if "gswarm-tui status" in block else ()), "bash", "-euc", block],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr, folder)


def parsed(text: str) -> list[Any]:
    """Return the JSON values that follow each other in a text."""
    decoder, values, at = json.JSONDecoder(), [], 0
    while at < len(text.rstrip()):
        value, at = decoder.raw_decode(text, at)
        values.append(value)
        at += len(text[at:]) - len(text[at:].lstrip())
    return values


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: " ".join(block.split()[:2]))
def test_examples_run_and_print_json(block: str, ran: dict[str, Ran]) -> None:
    one = ran[block]
    # Without a GPU here, doctor finds something to fix.
    assert one.status in ((0, 1) if " doctor" in block else (0,)), one.problem
    if "gswarm-tui record" in block:
        assert one.out == "trained\n"
        assert (one.folder / "baseline.html").is_file()
        return
    values = parsed(one.out)
    assert len(values) == block.count("gswarm-tui ")
    if "FROM events" not in block:
        assert all(values)


def test_fields_that_the_skill_names_are_printed(ran: dict[str, Ran]) -> None:
    printed = "".join(one.out for block, one in ran.items() if " record " not in block)
    cells = re.findall(r"^\| (`.+?) \| ", SKILL, re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"[a-z_]{4,}", cell) if "_" in name}
    named |= {"coverage", "speed_up", "efficiency", "energy_ratio", "findings", "fix", "state", "processes"}
    assert len(named) > 15
    assert [name for name in sorted(named) if f'"{name}"' not in printed] == []


def test_skill_has_the_header_that_agents_read() -> None:
    header = re.match(r"---\nname: gswarm-tui\ndescription: (.+)\n---\n", SKILL)
    assert header is not None
    assert len(header[1]) < 1024
