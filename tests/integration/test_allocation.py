"""Allocations of Slurm for one run, with commands in Slurm's place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gswarm_tui.profiling.allocation import allocated, find_job
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


@pytest.mark.parametrize(("job_id", "nodes", "group"), [("7", ("gpu3",), 0), ("7+1", ("gpu1", "gpu2"), 1)])
async def test_a_step_runs_in_one_component(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job_id: str, nodes: tuple[str, ...], group: int
) -> None:
    parts = [_component(7, "gpu3", "gpu(IDX:0)"), _component(8, "gpu[1-2]", "gpu(IDX:0-1)")]
    shown = "".join(parts) if job_id == "7" else parts[1]
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\n[ "$2" = job ] && printf %s "{shown}"\n')
    (tmp_path / "scontrol").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = await find_job(job_id)
    assert (found.job.nodes, set(found.job.gpus)) == (nodes, set(nodes))
    assert f"srun --jobid=7 --het-group={group} --overlap" in " ".join(found.step())


def _component(job_id: int, nodes: str, gres: str) -> str:
    return (
        f"JobId={job_id} HetJobId=7 HetJobOffset={job_id - 7} JobName=train\n"
        f"   UserId=ada({os.getuid()}) GroupId=staff(50)\n"
        "   JobState=RUNNING Reason=None Dependency=(null)\n"
        f"   NodeList={nodes}\n"
        f"     Nodes={nodes} CPU_IDs=0 Mem=0 GRES={gres}\n\n"
    )
