"""Metric families as text for Prometheus, in its own format or in OpenMetrics.

prometheus_client writes all but the lines of series. It needs 3 s for those of 8,192 GPUs, because it sorts
and escapes a GPU's labels once for each metric; here that happens once. The text is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from prometheus_client import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gswarm_tui.server.exposition import FamilyTable, MetricFamily

PLAIN = CONTENT_TYPE_PLAIN_0_0_4
OPENMETRICS = openmetrics.CONTENT_TYPE_LATEST
_GENERATORS: dict[str, Callable[[Collector], bytes]] = {
    PLAIN: generate_latest,
    OPENMETRICS: openmetrics.generate_latest,
}
_large_number: Callable[[float], str] = floatToGoString
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class _WithoutSeries(Collector):
    """Families of which only the comment lines are written."""

    def __init__(self, families: Iterable[MetricFamily]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        for family in self._families:
            yield Metric(family.name, family.help, family.kind, family.unit)


def negotiated(accept: str) -> str:
    """Return the content type for an Accept header."""
    return OPENMETRICS if "application/openmetrics-text" in accept else PLAIN


def exposition_text(tables: Sequence[FamilyTable], content_type: str) -> bytes:
    """Return the families with all series that have a value."""
    generate = _GENERATORS[content_type]
    end = generate(_WithoutSeries(()))
    parts: list[bytes] = []
    for table in tables:
        labels = [_label_text(one) for one in table.labels]
        for family, column in zip(table.families, table.values.T, strict=True):
            measured = np.isfinite(column)
            if not measured.any():
                continue
            parts.append(generate(_WithoutSeries((family,))).removesuffix(end))
            rows = zip(labels, column.tolist(), measured.tolist(), strict=True)
            name = family.series
            lines = [f"{name}{label} {_number(value)}\n" for label, value, known in rows if known]
            parts.append("".join(lines).encode("utf-8", "replace"))
    return b"".join([*parts, end])


def _number(value: float) -> str:
    return repr(value) if value < 1e6 else _large_number(value)  # the same text, in a third of the time


def _label_text(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{value.translate(_ESCAPES)}"' for name, value in sorted(labels.items()))
    return f"{{{','.join(pairs)}}}"
