"""A machine with many cores, as compute nodes are: libraries start threads for each unless told otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.heads import nothing_left
from tests.preloaded import compiled

CORES = 128
GSWARM = [sys.executable, "-m", "gswarm_tui"]


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables with which programs find that many cores, and memory is allocated as it is there."""
    library = compiled("many_cores.c", tmp_path_factory.mktemp("cores"), f"-DMANY_CORES={CORES}")
    tunables = f"glibc.malloc.arena_max={8 * CORES}"
    variables = {**os.environ, "LD_PRELOAD": str(library), "GLIBC_TUNABLES": tunables}
    variables.pop("OPENBLAS_NUM_THREADS", None)
    return variables


def test_recording_and_queries_work_with_many_cores(tmp_path: Path, environ: dict[str, str]) -> None:
    def gswarm(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*GSWARM, *words], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )

    command = 'echo "${OPENBLAS_NUM_THREADS:-all} of $(getconf _NPROCESSORS_ONLN)"'
    with nothing_left(tmp_path / "run.duckdb"):
        record = ("record", "--demo", "1x2", "--interval", "0.2", "--db", "run.duckdb")
        recorded = gswarm(*record, "--", "sh", "-c", command)
        again = gswarm(*record, "--", "true")
    assert (recorded.returncode, recorded.stdout) == (0, f"all of {CORES}\n"), recorded.stderr
    assert again.returncode == 0, again.stderr
    counted = gswarm("sql", "--db", "run.duckdb", "SELECT count(*) FROM recordings")
    assert counted.stdout.split()[-1] == "2", counted.stderr
    for words in (["summary"], ["report", "-o", "run.html"], ["export", "--format", "parquet", "-o", "run"]):
        done = gswarm(*words, "--db", "run.duckdb")
        assert done.returncode == 0, done.stderr
