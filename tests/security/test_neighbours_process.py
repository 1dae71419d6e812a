"""A neighbour's process on a shared GPU blocks its readers: the other processes are still shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster.standin import GpuProcess, Scenario
from tests.integration.probe_driver import AS_AGENTS_S, NamedSamples, ProbeProcess

MINE, THEIRS = 4_194_301, 4_194_302
"""Pids above any of this machine."""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return this machine's /proc with two more processes; reading the neighbour's command line blocks."""
    proc = tmp_path / "proc"
    proc.mkdir()
    for entry in Path("/proc").iterdir():
        (proc / entry.name).symlink_to(entry)
    for pid in (MINE, THEIRS):
        folder = proc / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} (python) S {'0 ' * 18}100 0 0\n")
        (folder / "status").write_text("Uid:\t0\t0\t0\t0\n")
        (folder / "cmdline").write_bytes(b"python\0train.py\0")
        (folder / "io").write_text("read_bytes: 0\nwrite_bytes: 0\n")
    (proc / str(THEIRS) / "cmdline").unlink()
    os.mkfifo(proc / str(THEIRS) / "cmdline")
    return proc


def commands(reading: NamedSamples) -> dict[int, str | None]:
    """Return the command lines by pid."""
    return {each.pid: each.command for each in reading.processes or ()}


@pytest.mark.parametrize("first", [MINE, THEIRS])
def test_process_that_hangs_when_it_is_read_hides_no_other(
    standin_lib: Path, tmp_path: Path, proc: Path, first: int
) -> None:
    scenario = Scenario.of("n", 2)
    scenario.gpus[0].processes = [GpuProcess(first, used_mib=1)]
    scenario.gpus[1].processes = [GpuProcess(MINE + THEIRS - first, used_mib=1)]
    scenario.write(tmp_path / "s")
    with ProbeProcess(standin_lib, tmp_path / "s", proc=proc, wait_s=AS_AGENTS_S) as node:
        reading = node.until(lambda each: len(commands(each)) == 2)
        assert commands(reading) == {MINE: "python train.py", THEIRS: None}
        assert [note.message for note in reading.notes] == [
            f"no longer shows details of process {THEIRS}: it hangs, or the kernel is slow to read its memory"
        ]
        (proc / str(MINE) / "cmdline").rename(proc / str(THEIRS) / "cmdline")
        node.read(skip_s=61)
        node.until(lambda each: commands(each).get(THEIRS) == "python train.py")
