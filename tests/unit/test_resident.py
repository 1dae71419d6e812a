"""Code that only the start of libraries needed, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gswarm_tui.run.resident import let_go_of_code

LETS_GO = """
from pathlib import Path

import duckdb
import numpy as np

from gswarm_tui.run.resident import let_go_of_code


def mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssFile:"))) / 1024


with duckdb.connect() as database:
    asked = "SELECT sum(range * 2)::BIGINT FROM range(1000)"
    before, first = mib(), database.sql(asked).fetchall()
    let_go_of_code()
    after, second = mib(), database.sql(asked).fetchall()
print(before - after, first, second, np.arange(5).sum())
"""


def test_code_that_is_not_in_use_takes_no_memory_and_comes_back_when_it_is_used() -> None:
    done = subprocess.run([sys.executable, "-c", LETS_GO], capture_output=True, text=True, check=True)
    freed, *answers = done.stdout.split(maxsplit=1)
    assert float(freed) > 15
    assert answers == ["[(999000,)] [(999000,)] 10\n"]


def test_where_the_kernel_does_not_tell_its_maps_nothing_happens(tmp_path: Path) -> None:
    let_go_of_code(tmp_path)
    let_go_of_code(tmp_path / "missing")
