"""Log file: it stays within its limit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gswarm_tui.run.log_file import MAX_BYTES

WARN = """
import logging
from gswarm_tui.run import log_file
print(log_file.begin())
for number in range(9_000):
    logging.warning("%05d %s", number, "x" * 1000)
"""


def test_log_keeps_the_newest_lines_in_two_files_of_at_most_their_limit(tmp_path: Path) -> None:
    env = os.environ | {"XDG_STATE_HOME": str(tmp_path)}
    path = Path(subprocess.check_output([sys.executable, "-c", WARN], env=env, text=True).strip())
    files = {file.name: file.stat().st_size for file in path.parent.iterdir()}
    assert files.keys() == {"gswarm-tui.log", "gswarm-tui.log.1"}
    assert max(files.values()) <= MAX_BYTES
    assert " 08999 " in path.read_text()[-1100:]
