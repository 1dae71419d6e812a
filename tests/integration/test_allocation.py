"""Allocations of Slurm for one run, with commands in Slurm's place."""

from __future__ import annotations

from pathlib import Path

import pytest

from gswarm_tui.profiling.allocation import allocated
from gswarm_tui.profiling.slurm_commands import ProfileError


async def test_a_job_that_waits_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = "echo salloc: Pending job allocation 7 >&2; echo salloc: error: no nodes >&2; exit 1"
    (tmp_path / "salloc").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "salloc").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(ProfileError, match=r"^Slurm denied the allocation: no nodes\.$"):
        async with allocated([]):
            pass
    assert capsys.readouterr().err == "gswarm-tui: job 7 waits for nodes; squeue --jobs=7 shows why\n"
