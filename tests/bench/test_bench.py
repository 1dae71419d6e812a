"""The command that runs benches prints their figures; values are not checked."""

from __future__ import annotations

import re
import subprocess
import sys
import time

from tests.bench.figures import Figure, markdown
from tests.bench.processes import with_agents


def test_bench_prints_its_seed_and_figures() -> None:
    command = [sys.executable, "-m", "tests.bench", "start", "--smoke", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    told, table = done.stdout.split("| figure")
    assert told.startswith("seed 1, ")
    rows = [line.split("|")[1:] for line in table.splitlines()[2:] if line.startswith("|")]
    assert rows
    for name, measured, *_ in rows:
        goes_on = name.startswith("   ") and not measured.strip()
        assert goes_on or re.match(r" [0-9][0-9.,e+-]* \S", measured), (name, measured)


def test_a_heads_agents_are_counted_with_it() -> None:
    relay = [sys.executable, "-c", "input()", "--recording", "of-this-test"]
    head = [sys.executable, "-c", f"import subprocess; subprocess.run({relay}, check=True)"]
    with (
        subprocess.Popen(relay, stdin=subprocess.PIPE, text=True) as agent,
        subprocess.Popen(head, stdin=subprocess.PIPE, text=True) as started,
    ):
        try:
            deadline = time.monotonic() + 60
            while len(found := with_agents(started.pid)) < 3 and time.monotonic() < deadline:
                time.sleep(0.02)
        finally:
            for each in (agent, started):
                each.communicate("\n")
    assert found[0] == started.pid
    assert agent.pid in found
    assert len(set(found)) == 3


def test_table_shows_measured_figures_goals_and_comparisons() -> None:
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
