"""What a node could not measure, and why, as rows of a table."""

from __future__ import annotations

from gswarm_agent.frame import Hello
from gswarm_agent.metrics import GPU_BY_NAME, HOST_BY_NAME
from gswarm_tui.tui.text import clean
from gswarm_tui.tui.widgets.bar import Span
from gswarm_tui.tui.widgets.table import Column, Row

UNMEASURED_TABLE = (
    Column("not measured", 24, left=True, frozen=True),
    Column("where", 8, left=True),
    Column("why", 20, left=True, grows=True),
)


def unmeasured_rows(hello: Hello) -> list[Row]:
    """One row a reason; the catalogue's label where the name is a metric's."""
    rows: list[Row] = []
    for name, why in sorted(hello.capabilities.items()):
        where, _, metric = name.rpartition(".")
        known = GPU_BY_NAME.get(metric) or HOST_BY_NAME.get(metric)
        label = metric if known is None else known.label
        place = where or ("host" if metric in HOST_BY_NAME else "all GPUs" if metric in GPU_BY_NAME else "")
        rows.append((Span(clean(label)), Span(clean(place), "dim"), Span(clean(why))))
    return rows
