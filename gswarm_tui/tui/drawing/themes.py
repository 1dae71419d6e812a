"""Three themes (dark, light, 16 colours) and their palettes for all that is drawn by line.

Colour carries the metric and nothing else: the ramps run from the background (little) to its opposite
(much) in even steps of lightness, blue to green, which all kinds of colour vision distinguish. The 16-colour
theme uses four of the terminal's own colours, and of 256 colours each ramp has ten; numbers
and block heights show what these can't.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from rich.color import Color
from rich.color_triplet import ColorTriplet
from rich.style import Style
from textual.theme import BUILTIN_THEMES, Theme

from gswarm_tui.common.colours import (
    ANSI,
    DARK,
    DARK_COLOURS,
    LIGHT,
    LIGHT_COLOURS,
    RGB,
    THEME_NAMES,
    Colours,
    between,
    mixed,
    parsed,
)
from gswarm_tui.tui.drawing.ramp import BUCKETS

Palette = Mapping[str, Style]
"""Styles of a theme by role: text, dim, faint, title, key, accent, good, warning, error, chip, row, cursor.

``heat7`` and ``ink7`` are the ramp's seventh bucket as background and as text; -1 is "unmeasured".
"""

# Low to high, the terminal's own colours by number: from blue to light grey they grow lighter,
# on a Linux console as in xterm. As text, dark blue is hard to see on black.
_ANSI_GROUNDS = (4, 12, 6, 7)
_ANSI_TEXTS = (15, 15, 0, 0)
_ANSI_INKS = (12, 12, 6, 7)
_ANSI_COLOURS = Colours(
    *("default", "default", "default", "color(7)", "color(8)"),
    *("color(14)", "color(10)", "color(11)", "color(9)", "color(5)"),
    anchors=(),
)

# Where there are 256 colours, these stand for a ramp as background and as text: of the nearest ones some are
# alike, and some go back. Twenty that grow lighter all the way are among them, but don't look like one ramp.
_EIGHT_BIT_RAMPS = {
    DARK: ((17, 18, 19, 24, 25, 31, 37, 43, 115, 151), (24, 25, 26, 31, 32, 37, 43, 79, 115, 151)),
    LIGHT: ((194, 158, 151, 115, 43, 37, 31, 25, 19, 17), (115, 79, 43, 37, 32, 31, 26, 25, 19, 17)),
}


def theme_for(environ: Mapping[str, str]) -> str:
    """Return the theme for a terminal's colours and background, from its environment."""
    term, colours = environ.get("TERM", ""), environ.get("COLORTERM", "")
    if colours not in ("truecolor", "24bit") and not any(
        kind in term for kind in ("256color", "direct", "kitty")
    ):
        return ANSI
    background = environ.get("COLORFGBG", "").rpartition(";")[2]
    return LIGHT if background in ("7", "15") else DARK


def _theme(name: str, colours: Colours, *, dark: bool) -> Theme:
    return Theme(
        name=name,
        primary=colours.accent,
        secondary=colours.dim,
        accent=colours.accent,
        foreground=colours.text,
        background=colours.background,
        surface=colours.surface,
        panel=colours.surface,
        success=colours.good,
        warning=colours.warning,
        error=colours.error,
        dark=dark,
        variables={
            "border": colours.faint,
            "border-blurred": colours.faint,
            "block-cursor-background": colours.accent,
            "block-cursor-foreground": colours.background,
            "block-cursor-text-style": "none",
            "input-cursor-background": colours.text,
            "scrollbar": colours.faint,
            "scrollbar-hover": colours.dim,
            "scrollbar-active": colours.accent,
            "scrollbar-background": colours.background,
            "scrollbar-background-hover": colours.background,
            "scrollbar-background-active": colours.background,
            "scrollbar-corner-color": colours.background,
        },
    )


def themes() -> tuple[Theme, ...]:
    """Return the themes to register with the app."""
    base = BUILTIN_THEMES["ansi-dark"]
    ansi = replace(base, name=ANSI, variables={**base.variables, "block-cursor-text-style": "none"})
    return _theme(DARK, DARK_COLOURS, dark=True), _theme(LIGHT, LIGHT_COLOURS, dark=False), ansi


@lru_cache(maxsize=len(THEME_NAMES))
def palette(theme: str) -> Palette:
    """Return the palette of a theme; an unknown theme gets the dark one."""
    if theme == ANSI:
        return _ansi_palette()
    return _true_palette(LIGHT_COLOURS if theme == LIGHT else DARK_COLOURS)


@lru_cache(maxsize=1)
def eight_bit_steps() -> Mapping[ColorTriplet, Color]:
    """Return the ramps' colours and the replacement of each in 256 colours."""
    found = {}
    for theme, ramps in _EIGHT_BIT_RAMPS.items():
        styles = palette(theme)
        grounds = [styles[f"heat{bucket}"].bgcolor for bucket in range(BUCKETS)]
        inks = [styles[f"ink{bucket}"].color for bucket in range(BUCKETS)]
        for steps, colours in zip(ramps, (grounds, inks), strict=True):
            for bucket, colour in enumerate(colours):
                if colour is not None and colour.triplet is not None:
                    found[colour.triplet] = Color.from_ansi(steps[bucket * len(steps) // BUCKETS])
    return found


def _true_palette(colours: Colours) -> Palette:
    ramp = [between(colours.anchors, step / (BUCKETS - 1)) for step in range(BUCKETS)]
    heat = [
        # Black or white, the more readable one.
        Style(color="#000000" if luminance(rgb) > 0.179 else "#ffffff", bgcolor=Color.from_rgb(*rgb))
        for rgb in ramp
    ]
    # As text the darkest steps need some distance from the background.
    inks = [
        Style(color=Color.from_rgb(*mixed(rgb, parsed(colours.text), 0.18)), bgcolor=colours.background)
        for rgb in ramp
    ]
    nothing = Style(color=colours.dim, bgcolor=colours.background)
    return _palette(
        colours,
        (*heat, nothing),
        (*inks, nothing),
        chip=Style(color=colours.background, bgcolor=colours.warning, bold=True),
        row=Style(bgcolor=colours.surface, bold=True),
        cursor=Style(color="#000000", bgcolor=colours.cursor, bold=True),
    )


def _ansi_palette() -> Palette:
    # Each bucket has one of a few terminal colours.
    grounds, texts, inks_of = (
        [f"color({few[step * len(few) // BUCKETS]})" for step in range(BUCKETS)]
        for few in (_ANSI_GROUNDS, _ANSI_TEXTS, _ANSI_INKS)
    )
    heat = [Style(color=text, bgcolor=ground) for text, ground in zip(texts, grounds, strict=True)]
    inks = [Style(color=ink, bgcolor="default") for ink in inks_of]
    faint = Style(color=_ANSI_COLOURS.faint, bgcolor="default")
    return _palette(
        _ANSI_COLOURS,
        (*heat, faint),
        (*inks, faint),
        chip=Style(color="default", bgcolor="default", reverse=True, bold=True),
        row=Style(bold=True),
        # No step has this colour; with text and ground reversed, the cursor would look like one of them.
        cursor=Style(color="color(15)", bgcolor=_ANSI_COLOURS.cursor, bold=True, underline=True),
    )


def _palette(colours: Colours, heat: Sequence[Style], inks: Sequence[Style], **own: Style) -> Palette:
    """Return the colours as text, the ramps, which end with "unmeasured", and styles of its ``own``."""
    named = {name: getattr(colours, name) for name in ("text", "dim", "faint", "good", "warning", "error")}
    named |= {"title": colours.text, "key": colours.accent, "accent": colours.accent}
    styles = {
        name: Style(color=colour, bgcolor=colours.background, bold=name in ("title", "accent") or None)
        for name, colour in named.items()
    }
    for step in range(-1, BUCKETS):
        styles[f"heat{step}"], styles[f"ink{step}"] = heat[step], inks[step]
    return styles | own


def luminance(rgb: RGB) -> float:
    """Return the relative luminance, 0 to 1 (WCAG 2.2)."""
    linear = [c / 12.92 if (c := v / 255) <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for v in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
