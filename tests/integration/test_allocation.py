"""Allocations of Slurm for one run, with commands in Slurm's place."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gswarm_tui.profiling.allocation import allocated


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("Priority", "Priority"),
        (
            "PartitionNodeLimit",
            "PartitionNodeLimit",
        ),
    ],
)
async def test_a_reason_that_never_passes_is_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str, shown: str
) -> None:
    for name, script in (
        ("salloc", "echo salloc: Pending job allocation 7 >&2; exec cat"),
        ("squeue", f"echo {reason}"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    reported: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    async def allocate() -> None:
        async with allocated([], lambda job, why: reported.put_nowait((job, why))):
            pass

    task = asyncio.create_task(allocate())
    assert await reported.get() == ("7", shown)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
