"""Blocks: a table's numbers as bytes, column after column, for the wire.

First come the columns in single precision, then those in double, all little-endian. The reasons and figures
are in docs/decisions/002-wire-blocks.md.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import cached_property, lru_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import FrozenSet, List, Optional, Sequence, Tuple, TypeAlias, Union

Number: TypeAlias = "Union[int, float]"
Row: TypeAlias = "Tuple[Optional[Number], ...]"
"""One row of numbers in the order of its table's columns; None where a value is missing."""

SINGLE, DOUBLE = 4, 8
MAX_SINGLE = 3.4028234663852886e38


@dataclass(frozen=True, eq=False)
class BlockLayout:
    """The columns of a table's blocks, in the order of its rows. Only the same object is equal.

    Columns in ``exact`` have double precision, the others single.
    """

    columns: Tuple[str, ...]
    exact: FrozenSet[str] = frozenset()

    @cached_property
    def singles(self) -> Tuple[int, ...]:
        """Positions in a row of the numbers in single precision."""
        return tuple(at for at, name in enumerate(self.columns) if name not in self.exact)

    @cached_property
    def doubles(self) -> Tuple[int, ...]:
        """Positions in a row of the numbers in double precision."""
        return tuple(at for at, name in enumerate(self.columns) if name in self.exact)

    @cached_property
    def _order(self) -> Tuple[int, ...]:
        """Positions in a row of the block's columns."""
        return self.singles + self.doubles

    @cached_property
    def row_size(self) -> int:
        """Bytes per row."""
        return SINGLE * len(self.singles) + DOUBLE * len(self.doubles)

    def pack_rows(self, rows: Sequence[Optional[Row]]) -> Block:
        """Return rows as a block; None is a row without values. NaN and infinite numbers are missing."""
        unmeasured = (None,) * len(self.columns)
        columns = list(zip(*[unmeasured if row is None else row for row in rows])) if rows else []
        ordered = self._order if rows else ()
        numbers = [math.nan if n is None else n for at in ordered for n in columns[at]]
        packer = _struct(self, len(rows))
        try:
            data = packer.pack(*numbers)
        except (OverflowError, struct.error):  # a mistake in a probe must not end the node's link
            data = packer.pack(*(n if abs(n) <= MAX_SINGLE else math.nan for n in numbers))
        return Block(self, len(rows), data)


@dataclass(frozen=True)
class Block:
    """Numbers of ``count`` rows, little-endian; NaN and infinite numbers are missing values."""

    layout: BlockLayout
    count: int
    data: bytes

    @property
    def rows(self) -> Tuple[Row, ...]:
        """The rows as numbers, None for missing values. For few rows: many are decoded with NumPy."""
        layout, count = self.layout, self.count
        numbers = _struct(layout, count).unpack(self.data)
        values = [n if math.isfinite(n) else None for n in numbers]
        columns: List[Sequence[Optional[Number]]] = [()] * len(layout.columns)
        for begin, at in zip(range(0, len(values), count or 1), layout.singles + layout.doubles):
            columns[at] = values[begin : begin + count]
        return tuple(zip(*columns)) if columns else ((),) * count


@lru_cache(maxsize=16)
def _struct(layout: BlockLayout, rows: int) -> struct.Struct:
    return struct.Struct(f"<{rows * len(layout.singles)}f{rows * len(layout.doubles)}d")
