"""The benches run and find figures; what these are, on a machine that does other things, says nothing."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.bench.__main__ import BENCHES
from tests.bench.figures import Figure, markdown
from tests.unit.sshd import SSHD


@pytest.mark.parametrize("name", BENCHES)
def test_a_bench_finds_figures(name: str) -> None:
    if name in ("fanout", "past") and SSHD is None:
        pytest.skip("needs an OpenSSH server")
    command = [sys.executable, "-m", "tests.bench", name, "--smoke", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    told, table = done.stdout.split("| figure")
    assert told.startswith("seed 1, ")
    rows = [line.split("|")[1:] for line in table.splitlines()[2:] if line.startswith("|")]
    assert rows
    for name, measured, *_ in rows:
        goes_on = name.startswith("   ") and not measured.strip()
        assert goes_on or re.match(r" [0-9][0-9.,e+-]* \S", measured), (name, measured)


def test_the_table_says_what_was_reached_and_what_stands_beside_it() -> None:
    figures = [
        Figure("first paint", 0.55, "s", 0.7, limit="bare Python", beside=0.05),
        Figure("committed", 53_000.4, "samples", 100_000, at_least=True),
        Figure("memory of a head that has many nodes and their history", 117.2, "MiB"),
    ]
    head, line, *rows, nothing, limit = markdown(figures).splitlines()
    assert [[cell.strip() for cell in row.split("|")[1:-1]] for row in (head, *rows)] == [
        ["figure", "measured", "goal", "", "beside it"],
        ["first paint", "0.55 s", "≤ 0.7", "met", "0.05 (11.00 ×) [1]"],
        ["committed", "53,000 samples", "≥ 100,000", "MISSED", ""],
        ["memory of a head that has many nodes and", "117 MiB", "", "", ""],
        ["their history", "", "", "", ""],
    ]
    assert {len(row) for row in (head, line, *rows)} == {len(head)}
    assert len(head) <= 120
    assert (nothing, limit) == ("", "[1] bare Python")
