"""Figures as files: their kinds, and what these say of themselves."""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.figure import Figure

from gswarm_tui.common.errors import UserError, quote

DPI = 220
SUFFIXES = (".pdf", ".png", ".svg")
"""What a plot can be written as."""

_METADATA: dict[str, dict[str, str | None]] = {
    "pdf": {"Creator": "gswarm-tui", "CreationDate": None},
    "png": {"Software": "gswarm-tui"},
    "svg": {"Creator": "gswarm-tui", "Date": None},
}


def require_suffix(path: Path) -> Path:
    """The path, if its name ends as a plot's may. Raises UserError."""
    if path.suffix.lower() not in SUFFIXES:
        what = f"ends in {quote(path.suffix)}" if path.suffix else "has no ending"
        raise UserError(f"{path} {what}; a plot is a .pdf, .png or .svg.")
    return path


def content(figure: Figure, kind: str, title: str, dpi: int = DPI) -> bytes:
    """A figure as a file of this kind: pdf, png or svg; within ``look.style``."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=dpi, metadata=_METADATA[kind] | {"Title": title})
    return buffer.getvalue()
