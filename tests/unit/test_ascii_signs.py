"""ASCII in the place of signs, for terminals whose locale isn't UTF-8."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gswarm_tui.common.ascii_signs import (
    ASCII_SIGNS,
    ascii_sign,
    is_utf8,
    register_ascii_signs,
)
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.screens.help import signs_of

PICTURES = Path(__file__).parents[1] / "tui" / "pictures"


def on_terminal(text: str) -> str:
    """Return the text that is sent to a terminal in such a locale."""
    register_ascii_signs(cell_len)
    return text.encode("ascii", ASCII_SIGNS).decode("ascii")


@pytest.mark.parametrize("picture", sorted(PICTURES.glob("*.txt")), ids=lambda path: path.stem)
def test_lines_of_screens_keep_their_width_in_ascii(picture: Path) -> None:
    for line in picture.read_text().splitlines():
        assert len(on_terminal(line)) == cell_len(line)


def test_every_sign_of_the_screens_has_an_ascii_sign() -> None:
    signs = {sign for picture in PICTURES.glob("*.txt") for sign in picture.read_text() if ord(sign) > 127}
    assert len(signs) > 50, "pictures without signs prove nothing"
    assert [sign for sign in sorted(signs) if on_terminal(sign) == "?"] == []


def test_signs_of_node_states_stay_distinct_in_ascii() -> None:
    states = [sign for sign, _ in signs_of("fleet", "live") if " " in sign and not sign.isascii()]
    assert len({on_terminal(sign) for sign in states}) == len(states)


@given(st.text())
def test_any_clean_text_keeps_its_width_in_ascii(text: str) -> None:
    safe = clean(text)
    assert sum(len(ascii_sign(char, cell_len(char))) for char in safe) == sum(map(cell_len, safe))
    assert on_terminal(safe).isascii()


@pytest.mark.parametrize(
    ("encoding", "utf8"), [("UTF-8", True), ("utf8", True), ("iso8859-1", False), ("ascii", False)]
)
def test_utf8_is_recognised_by_all_its_names(encoding: str, utf8: bool) -> None:
    assert is_utf8(encoding) is utf8
