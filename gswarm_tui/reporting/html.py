"""Functions that build HTML and escape every text that isn't ``Html``."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_VOID = {"meta", "br", "hr"}
_CONTROLS = {
    code: ascii(chr(code))[1:-1]
    for code in (
        *range(9), 11, 12, *range(14, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)
    )
}  # fmt: skip
"""Control characters, which HTML forbids, and those that change the writing direction: they are spelt out."""


class Html(str):
    """HTML text, which ``tag`` doesn't escape."""

    __slots__ = ()


def tag(element: str, /, *parts: object, **attributes: str | None) -> Html:
    """Build an element and escape the parts that aren't ``Html``; ``class_`` sets the class."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if element in _VOID:
        return Html(f"<{element}{written}>")
    content = "".join(part if isinstance(part, Html) else _escaped(part) for part in parts)
    return Html(f"<{element}{written}>{content}</{element}>")


def _escaped(text: object) -> str:
    return escape(str(text).translate(_CONTROLS))


def table(
    heads: Iterable[str], rows: Iterable[Iterable[object]], *, right: frozenset[int] = frozenset()
) -> Html:
    """Return a table that scrolls if it is too wide; columns in ``right`` are numbers."""

    def side(column: int) -> str | None:
        return "n" if column in right else None

    head = tag("tr", *(tag("th", text, class_=side(at), scope="col") for at, text in enumerate(heads)))
    body = [
        tag(
            "tr",
            *(
                cell if isinstance(cell, HtmlCell) else tag("td", cell, class_=side(at))
                for at, cell in enumerate(row)
            ),
        )
        for row in rows
    ]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="wide", tabindex="0")


def fact_list(facts: Iterable[tuple[str, object]]) -> Html:
    """Return an HTML list of names with their values."""
    parts = (part for name, value in facts for part in (tag("dt", name), tag("dd", value)))
    return tag("dl", *parts, class_="facts")


class HtmlCell(Html):
    """A complete table cell."""

    __slots__ = ()


def cell(text: object, *classes: str, title: str | None = None) -> HtmlCell:
    """Return a cell with classes and a tooltip."""
    return HtmlCell(tag("td", text, class_=" ".join(classes) or None, title=title))
