"""Style of the plots, independent of the user's matplotlib settings."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt

from gswarm_tui.common.colours import LIGHT_COLOURS, between

INK, DIM, FAINT = LIGHT_COLOURS.text, LIGHT_COLOURS.dim, LIGHT_COLOURS.faint
LINE = LIGHT_COLOURS.anchors[5]
INNER, OUTER = LIGHT_COLOURS.anchors[2], LIGHT_COLOURS.anchors[1]
GRID = LIGHT_COLOURS.surface
GAP, GAP_LINES = "#dcd6d0", "#bdb4aa"
HATCHED: Any = {"facecolor": GAP, "edgecolor": GAP_LINES, "hatch": "//////", "linewidth": 0}
"""Hatching that marks times without data."""
NO_DATA, NO_DATA_LINES = "#a8a29b", "#8b857e"
ROWS_HATCHED: Any = {**HATCHED, "facecolor": NO_DATA, "edgecolor": NO_DATA_LINES}
"""The same in heatmaps, where the row of a GPU may be as thin as a line: darker than that of an idle one."""
SEVERITY = {"error": LIGHT_COLOURS.error, "warning": LIGHT_COLOURS.warning}
VALUES = ("#36598c", "#b0561f", "#2f8f6b", "#8a4f9e")
"""Colours of mark values, distinct with any colour vision."""

SMALL, USUAL, LARGE = 6.0, 7.0, 10.0
"""Sizes of text in points."""

_SHADES = 128
# The ramps of the screens, but 0 differs from paper: the row of an idle GPU is as thin as a line.
_ANCHORS = ("#f6eca4", *LIGHT_COLOURS.anchors[1:])
RAMP: npt.NDArray[np.uint8] = np.array(
    [(*between(_ANCHORS, step / (_SHADES - 1)), 255) for step in range(_SHADES)], dtype=np.uint8
)
"""RGBA colours from low to high values."""

# fmt: off
_STYLE: Any = {
    "axes.axisbelow": True, "axes.edgecolor": FAINT, "axes.labelcolor": DIM, "axes.linewidth": 0.5,
    "axes.spines.right": False, "axes.spines.top": False,
    "font.sans-serif": ["Arial", "Liberation Sans", "DejaVu Sans"], "font.size": USUAL,
    "grid.color": GRID, "grid.linewidth": 0.5, "hatch.linewidth": 0.35,
    "lines.linewidth": 0.9, "lines.solid_joinstyle": "round",
    "pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "gswarm-tui",
    "text.color": INK, "text.parse_math": False,  # a name may hold dollars
    "xtick.color": FAINT, "xtick.labelcolor": DIM, "xtick.labelsize": SMALL,
    "xtick.major.size": 2.5, "xtick.major.width": 0.5,
    "ytick.color": FAINT, "ytick.labelcolor": DIM, "ytick.labelsize": SMALL,
    "ytick.major.size": 0, "ytick.major.pad": 3,
}
# fmt: on


@contextmanager
def plot_style() -> Iterator[None]:
    """Apply the style while drawing and saving, then restore the settings."""
    with mpl.rc_context(), warnings.catch_warnings():
        # A character without a glyph is drawn as a box.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        mpl.rcParams.update(mpl.rcParamsDefault)
        mpl.rcParams.update(_STYLE)
        yield
