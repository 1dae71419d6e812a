"""Blocks: a table's numbers as bytes, column after column, for the wire.

First come the columns in single precision, then those in double, all little-endian. The reasons and figures
are in docs/decisions/002-wire-blocks.md.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import cached_property

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import FrozenSet, Optional, Sequence, Tuple, TypeAlias, Union

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
    def row_size(self) -> int:
        """Bytes per row."""
        return SINGLE * len(self.singles) + DOUBLE * len(self.doubles)

    def pack_rows(self, rows: Sequence[Optional[Row]]) -> Block:
        """Return rows as a block; None is a row without values. NaN and infinite numbers are missing."""
        numbers = [
            math.nan if row is None or (number := row[at]) is None else number
            for at in (*self.singles, *self.doubles)
            for row in rows
        ]
        form = f"<{len(rows) * len(self.singles)}f{len(rows) * len(self.doubles)}d"
        try:
            data = struct.pack(form, *numbers)
        except (OverflowError, struct.error):  # a mistake in a probe must not end the node's link
            data = struct.pack(form, *(n if abs(n) <= MAX_SINGLE else math.nan for n in numbers))
        return Block(self, len(rows), data)


@dataclass(frozen=True)
class Block:
    """Numbers of ``count`` rows, little-endian; NaN and infinite numbers are missing values."""

    layout: BlockLayout
    count: int
    data: bytes
