"""The benches run and find figures; what these are, on a machine that does other things, says nothing."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.bench.__main__ import USUAL
from tests.bench.figures import Figure, markdown
from tests.unit.sshd import SSHD


@pytest.mark.parametrize("name", USUAL)
def test_a_bench_finds_figures(name: str) -> None:
    if name == "fanout" and SSHD is None:
        pytest.skip("needs an OpenSSH server")
    command = [sys.executable, "-m", "tests.bench", name, "--smoke", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    head, _, *rows = done.stdout.splitlines()
    assert [cell.strip() for cell in head.split("|")[1:3]] == ["figure", "measured"]
    assert rows
    for row in rows:
        assert re.match(r"\| .+ \| [0-9][0-9.,e+]* \S", row), row


def test_the_table_says_what_was_reached_and_what_stands_beside_it() -> None:
    figures = [
        Figure("first paint", 0.55, "s", 0.7, limit="bare Python", beside=0.05),
        Figure("committed", 53_000.4, "samples", 100_000, at_least=True),
        Figure("memory", 117.2, "MiB"),
    ]
    assert markdown(figures).splitlines() == [
        "| figure      | measured       | goal      |        | beside it                  |",
        "|-------------|----------------|-----------|--------|----------------------------|",
        "| first paint | 0.55 s         | ≤ 0.7     | met    | bare Python 0.05 (11.00 ×) |",
        "| committed   | 53,000 samples | ≥ 100,000 | MISSED |                            |",
        "| memory      | 117 MiB        |           |        |                            |",
    ]
