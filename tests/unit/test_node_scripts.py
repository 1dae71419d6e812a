"""Scripts that ``gswarm-tui profile`` runs on nodes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gswarm_tui.profiling.node_scripts import HOLD, setup_line


@pytest.mark.parametrize(
    ("setup", "reported"),
    [("exit 3", "3 it ends the shell by exit"), ("echo no module; false", "1 no module")],
)
def test_a_setup_that_fails_or_exits_is_reported_and_leaves_no_folder(
    tmp_path: Path, setup: str, reported: str
) -> None:
    words = ["bash", "-c", HOLD, "hold", "token", "nsys"]
    env = {"TMPDIR": str(tmp_path), "SLURMD_NODENAME": "gpu01", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        words, input=f"{setup_line(setup)}\n", env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout == f"GSWARM setup gpu01 {reported}\n"
    assert list(tmp_path.iterdir()) == []
