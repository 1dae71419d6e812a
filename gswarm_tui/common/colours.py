"""The colours of screens, plots and reports: one ramp for values, and a few roles, on dark and on light."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

RGB = tuple[int, int, int]

DARK, LIGHT, ANSI = "dark", "light", "ansi"
THEME_NAMES = (DARK, LIGHT, ANSI)
"""Themes of the screens; ``ansi`` uses the terminal's own 16 colours."""


class Colours(NamedTuple):
    """Colours of one theme; ``anchors`` and ``hot`` are evenly spaced ramps from low to high values.

    Both run in even steps of lightness, which all kinds of colour vision tell apart: from blue to green, and,
    where more is worse, from brown to yellow on dark and from pink to maroon on light.
    """

    background: str
    surface: str
    text: str
    dim: str
    faint: str
    accent: str
    good: str
    warning: str
    error: str
    cursor: str
    anchors: tuple[str, ...]
    hot: tuple[str, ...]


# fmt: off
DARK_COLOURS = Colours(
    background="#0f1217", surface="#1a1f27", text="#d8dde6", dim="#8992a1", faint="#3b434f",
    accent="#7cc4f0", good="#7bc98f", warning="#f0b64a", error="#ff7a6b", cursor="#eef2f8",
    anchors=("#1b1d33", "#2d3166", "#35538c", "#33789a", "#399d9d", "#5cbd98", "#a2d9a5"),
    hot=("#241a20", "#4d2029", "#7d2c2e", "#ad4230", "#d4663a", "#ee954f", "#fbcf85"),
)
LIGHT_COLOURS = Colours(
    background="#fbfbf9", surface="#eeefeb", text="#23282f", dim="#69717d", faint="#b4bac2",
    accent="#0b63a5", good="#1d7a3c", warning="#9a5b00", error="#c0281c", cursor="#ffb000",
    anchors=("#e9f1e6", "#bfe0bf", "#86c6b0", "#55a5a8", "#3b829d", "#36598c", "#302f63"),
    hot=("#f7e9e4", "#f3c9ba", "#eb9f8a", "#dc6f5c", "#c0413a", "#8f2530", "#571522"),
)
# fmt: on


def parsed(colour: str) -> RGB:
    """Parse "#rrggbb"."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def mixed(one: RGB, other: RGB, share: float) -> RGB:
    """Mix two colours; share 0 is the first, 1 the other."""
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(one, other, strict=True))
    return red, green, blue


def between(anchors: Sequence[str], position: float) -> RGB:
    """Return the colour at a position (0 to 1) of a ramp through evenly spaced anchors."""
    place = position * (len(anchors) - 1)
    lower = min(int(place), len(anchors) - 2)
    return mixed(parsed(anchors[lower]), parsed(anchors[lower + 1]), place - lower)
