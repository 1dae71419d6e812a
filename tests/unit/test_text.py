"""Text cut and wrapped for the screen."""

from __future__ import annotations

import pytest

from gswarm_tui.tui.drawing.text import wrap


@pytest.mark.parametrize(
    ("text", "cells", "lines"),
    [
        ("busy 12.6 GPU-min, idle 3.06 GPU-min", 28, ["busy 12.6 GPU-min, idle", "3.06 GPU-min"]),
        ("check --nodes · retry in 43 s", 27, ["check --nodes · retry in", "43 s"]),
        ("gpu03 was lost again 5 times", 22, ["gpu03 was lost again", "5 times"]),
        ("1,234,567 rows", 9, ["1,234,567", "rows"]),
    ],
)
def test_wrapping_keeps_a_number_on_one_line_with_its_unit(text: str, cells: int, lines: list[str]) -> None:
    assert wrap(text, cells) == lines
