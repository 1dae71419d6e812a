"""Themes and their palettes for all that is drawn by line: dark, light, 16 colours.

Colour carries the metric and nothing else: the ramps run from the background (little) to its opposite
(much) in even steps of lightness, which all kinds of colour vision distinguish: blue to green, and red where
more is worse. The 16-colour theme uses four of the terminal's own colours, and of 256 colours each ramp has
ten; numbers and block heights show what these can't.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from rich.color import Color, ColorType
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
from gswarm_tui.tui.drawing.ramp import BUCKETS, HOT

Palette = Mapping[str, Style]
"""Styles of a theme by role: text, dim, faint, title, key, accent, good, warning, error, chip, row, cursor.

``heat7`` and ``ink7`` are the ramp's seventh bucket as background and as text; -1 is "unmeasured".
``heat_hot7`` and ``ink_hot7`` are those of the ramp of metrics of which more is worse.
"""

# Low to high, the terminal's own colours by number: from blue to light grey, or to red and yellow, they grow
# lighter, on a Linux console as in xterm. As text, dark blue is hard to see on black.
_ANSI_GROUNDS = {"": (4, 12, 6, 7), HOT: (4, 1, 9, 11)}
_ANSI_TEXTS = (15, 15, 0, 0)
_ANSI_INKS = {"": (12, 12, 6, 7), HOT: (12, 9, 9, 11)}
_ANSI_COLOURS = Colours(
    *("default", "default", "default", "color(7)", "color(8)"),
    *("color(14)", "color(10)", "color(11)", "color(9)", "color(5)"),
    anchors=(),
    hot=(),
)

# Where there are 256 colours, these stand for a ramp as background and as text: of the nearest ones some are
# alike, and some go back. Twenty that grow lighter all the way are among them, but don't look like one ramp.
_EIGHT_BIT_RAMPS = {
    (True, ""): ((17, 18, 19, 24, 25, 31, 37, 43, 115, 151), (24, 25, 26, 31, 32, 37, 43, 79, 115, 151)),
    (False, ""): ((194, 158, 151, 115, 43, 37, 31, 25, 19, 17), (115, 79, 43, 37, 32, 31, 26, 25, 19, 17)),
    (True, HOT): (
        (52, 88, 124, 160, 130, 131, 166, 172, 215, 222),
        (124, 160, 130, 166, 172, 208, 214, 215, 221, 223),
    ),
    (False, HOT): (
        (224, 217, 216, 210, 203, 167, 131, 124, 88, 52),
        (217, 210, 209, 203, 167, 131, 160, 124, 88, 52),
    ),
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
            "scrollbar-corner-color": colours.background,
            **{f"scrollbar-background{state}": colours.background for state in ("", "-hover", "-active")},
        },
    )


def themes() -> tuple[Theme, ...]:
    """Return the themes to register with the app."""
    base = BUILTIN_THEMES["ansi-dark"]
    ansi = replace(base, name=ANSI, variables={**base.variables, "block-cursor-text-style": "none"})
    return ansi, *(_theme(name, _colours(name), dark=name != LIGHT) for name in (DARK, LIGHT))


def _colours(name: str) -> Colours:
    return LIGHT_COLOURS if name == LIGHT else DARK_COLOURS


@lru_cache(maxsize=len(THEME_NAMES))
def palette(theme: str) -> Palette:
    """Return the palette of a theme; an unknown theme gets the dark one."""
    if theme == ANSI:
        return _ansi_palette()
    return _true_palette(_colours(theme), dark=theme != LIGHT)


@lru_cache(maxsize=1)
def eight_bit_steps() -> Mapping[str, Color]:
    """Return the replacement in 256 colours of each of the ramps' colours, by its name."""
    return {
        _step_name(kind, ramp, bucket, dark=dark): Color.from_ansi(steps[bucket * len(steps) // BUCKETS])
        for (dark, ramp), both in _EIGHT_BIT_RAMPS.items()
        for kind, steps in zip(("heat", "ink"), both, strict=True)
        for bucket in range(BUCKETS)
    }


def _step_name(kind: str, ramp: str, bucket: int, *, dark: bool) -> str:
    return f"{DARK if dark else LIGHT}_{kind}{ramp}{bucket}"


def _true_palette(colours: Colours, *, dark: bool) -> Palette:
    def colour(kind: str, bucket: int, rgb: RGB) -> Color:
        name = _step_name(kind, ramp, bucket, dark=dark)
        return Color(name, ColorType.TRUECOLOR, triplet=ColorTriplet(*rgb))

    ramps = {}
    for ramp, anchors in (("", colours.anchors), (HOT, colours.hot)):
        steps = [between(anchors, step / (BUCKETS - 1)) for step in range(BUCKETS)]
        ramps[f"heat{ramp}"] = [
            # Black or white, the more readable one.
            Style(color="#000000" if luminance(rgb) > 0.179 else "#ffffff", bgcolor=colour("heat", at, rgb))
            for at, rgb in enumerate(steps)
        ]
        # As text the darkest steps need some distance from the background.
        ramps[f"ink{ramp}"] = [
            Style(color=colour("ink", at, mixed(rgb, parsed(colours.text), 0.18)), bgcolor=colours.background)
            for at, rgb in enumerate(steps)
        ]
    return _palette(
        colours,
        ramps,
        Style(color=colours.dim, bgcolor=colours.background),
        chip=Style(color=colours.background, bgcolor=colours.warning, bold=True),
        row=Style(bgcolor=colours.surface, bold=True),
        cursor=Style(color="#000000", bgcolor=colours.cursor, bold=True),
    )


def _ansi_palette() -> Palette:
    ramps = {}
    for name, grounds in _ANSI_GROUNDS.items():
        # Each bucket has one of a few terminal colours.
        few = [step * len(grounds) // BUCKETS for step in range(BUCKETS)]
        ramps[f"heat{name}"] = [
            Style(color=f"color({_ANSI_TEXTS[step]})", bgcolor=f"color({grounds[step]})") for step in few
        ]
        inks = _ANSI_INKS[name]
        ramps[f"ink{name}"] = [Style(color=f"color({inks[step]})", bgcolor="default") for step in few]
    return _palette(
        _ANSI_COLOURS,
        ramps,
        Style(color=_ANSI_COLOURS.faint, bgcolor="default"),
        chip=Style(color="default", bgcolor="default", reverse=True, bold=True),
        row=Style(bold=True),
        # No step has this colour; with text and ground reversed, the cursor would look like one of them.
        cursor=Style(color="color(15)", bgcolor=_ANSI_COLOURS.cursor, bold=True, underline=True),
    )


def _palette(
    colours: Colours, ramps: Mapping[str, Sequence[Style]], unmeasured: Style, **own: Style
) -> Palette:
    """Return the colours as text, the ramps with their step "unmeasured", and styles of its ``own``."""
    named = {name: getattr(colours, name) for name in ("text", "dim", "faint", "good", "warning", "error")}
    named |= {"title": colours.text, "key": colours.accent, "accent": colours.accent}
    styles = {
        name: Style(color=colour, bgcolor=colours.background, bold=name in ("title", "accent") or None)
        for name, colour in named.items()
    }
    for name, ramp in ramps.items():
        styles |= {f"{name}{step}": style for step, style in enumerate(ramp)}
        styles[f"{name}-1"] = unmeasured
    return styles | own


def luminance(rgb: RGB) -> float:
    """Return the relative luminance, 0 to 1 (WCAG 2.2)."""
    linear = [c / 12.92 if (c := v / 255) <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for v in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
