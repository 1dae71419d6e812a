"""Benches print their figures, goals and comparisons as one table."""

from __future__ import annotations

from tests.bench.figures import Figure, markdown


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
