"""The skill for coding agents: its examples run on a recording and print what it says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests.docs.example import DATABASE, record_example

SKILL = files("gswarm_tui").joinpath("SKILL.md").read_text()
TRAINING = """
import subprocess

has_samples = ["gswarm-tui", "sql", "--format", "csv", "SELECT count(*) > 1 AS found FROM host_samples"]
while "true" not in subprocess.run(has_samples, capture_output=True, text=True, check=False).stdout:
    pass
print("trained")
"""
RECORDING = (sys.executable, "-m", "gswarm_tui", "record", "--")
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
    """Run each example as an agent would, beside a recording, on the nodes of a job: here, this machine."""
    recording = tmp_path_factory.mktemp("recording")
    record_example(recording)
    results = {}
    for block in BLOCKS:
        folder = tmp_path_factory.mktemp("example")
        shutil.copy(recording / DATABASE, folder)
        (folder / "train.py").write_text(TRAINING)
        environ = {
            **os.environ,
            "HOME": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_RUNTIME_DIR": str(folder),
            "GSWARM_TUI_LAUNCHER": "local",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        done = subprocess.run(
            [*(RECORDING if "gswarm-tui status" in block else ()), "bash", "-euc", block],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        results[block] = Ran(done.returncode, done.stdout, done.stderr, folder)
    return results


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
