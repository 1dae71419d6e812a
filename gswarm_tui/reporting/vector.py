"""Plots as parts of a page: SVG that takes the page's colours and letters, and holds nothing unneeded."""

from __future__ import annotations

import re
from datetime import tzinfo
from html import escape

from gswarm_tui.plotting import look
from gswarm_tui.plotting.figure import draw
from gswarm_tui.plotting.material import Material
from gswarm_tui.reporting.html import Html

ROLES = {
    "#ffffff": "paper",
    look.INK: "ink",
    look.DIM: "dim",
    look.FAINT: "faint",
    look.GRID: "grid",
    look.LINE: "line",
    look.INNER: "inner",
    look.OUTER: "outer",
    look.GAP: "gap",
    look.GAP_LINES: "gap-lines",
    look.SEVERITY["error"]: "error",
    look.SEVERITY["warning"]: "warning",
}
"""Colours of plots, and the page's variables in their place: these have other values in the dark."""


def inline(material: Material, zone: tzinfo | None, name: str, label: str) -> Html:
    """A plot without its headings as an element of a page; ``name`` is its own on the page."""
    drawn = draw(material, zone, "svg", headed=False).decode()
    return Html(_fitted(drawn, name, label))


def _fitted(drawn: str, name: str, label: str) -> str:
    svg = drawn[drawn.index("<svg") :]
    svg = re.sub(r"<(metadata|title|style)\b.*?</\1>", "", svg, flags=re.DOTALL)
    opening, _, body = svg.partition(">")
    box = opening.partition('viewBox="')[2].partition('"')[0]
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', body))

    def fit(found: re.Match[str]) -> str:
        element = re.sub(r'id="heat"', 'class="heat"', found[0])
        element = re.sub(
            r' id="([^"]*)"', lambda it: f' id="{name}-{it[1]}"' if it[1] in used else "", element
        )
        element = element.replace("url(#", f"url(#{name}-").replace("xlink:href=", "href=")
        element = element.replace('href="#', f'href="#{name}-')
        if " d=" in element:
            element = re.sub(r"(\d\.\d\d)\d+", r"\1", element)
        element = re.sub(r"font-family: [^;\"]*", "font-family: var(--plot)", element)
        element = re.sub(r'fill="(#[0-9a-f]{6})"', r'style="fill: \1"', element)
        return re.sub(r"#[0-9a-f]{6}\b", lambda it: _variable(it[0]), element)

    # Only what is in elements is changed, never a text: that may be somebody's name.
    body = re.sub(r"<[^>]+>", fit, body)
    return f'<svg viewBox="{box}" role="img" aria-label="{escape(label)}">{body}'


def _variable(colour: str) -> str:
    return f"var(--{ROLES[colour]})" if colour in ROLES else colour
