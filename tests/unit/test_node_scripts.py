"""The script that ``gswarm-tui profile`` runs on nodes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gswarm_tui.profiling.node_scripts import RUN, setup_line


@pytest.mark.parametrize(
    ("setup", "said"),
    [
        ("echo no module; false", "the setup failed with exit status 1: no module"),
        (
            "PATH=/nowhere",
            "there is no nsys on its PATH; load its module with --setup 'module load ...'.",
        ),
    ],
)
def test_a_node_that_lacks_something_is_named_and_no_folder_stays(
    tmp_path: Path, setup: str, said: str
) -> None:
    words = ["bash", "-c", RUN, "run", "token", str(tmp_path), "all", "1", "nsys", "true"]
    env = {"TMPDIR": str(tmp_path), "SLURMD_NODENAME": "gpu01", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        words, input=f"{setup_line(setup)}\n", env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, f"gswarm-tui: gpu01: {said}\n")
    assert list(tmp_path.iterdir()) == []
