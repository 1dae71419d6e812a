"""Rows of numbers as blocks of bytes: what a frame carries, as small and as cheap as it gets.

A block has its numbers column after column, in two parts: those in single precision, then those in double.
Of each part come all first bytes, then all second bytes and so on. In such planes a byte resembles the one
before it, and the packer makes them much shorter than numbers.
"""

from __future__ import annotations

import math
import struct
from functools import cached_property, lru_cache

from gswarm_agent.frozen import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import FrozenSet, List, Optional, Sequence, Tuple, TypeAlias, Union

Number: TypeAlias = "Union[int, float]"
Row: TypeAlias = "Tuple[Optional[Number], ...]"
"""One row of numbers in the order of its table's columns; None where the machine has no answer."""

SINGLE, DOUBLE = 4, 8
MAX_SINGLE = 3.4028234663852886e38


@dataclass(frozen=True)
class BlockLayout:
    """The columns of a table's blocks, in the order of its rows.

    Those in ``exact`` are held in double precision, the others in single.
    """

    columns: Tuple[str, ...]
    exact: FrozenSet[str] = frozenset()

    def __hash__(self) -> int:
        """Computed once: frames are sorted by layout."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.columns, self.exact))

    @cached_property
    def singles(self) -> Tuple[int, ...]:
        """Where a row has the numbers that are held in single precision."""
        return tuple(at for at, name in enumerate(self.columns) if name not in self.exact)

    @cached_property
    def doubles(self) -> Tuple[int, ...]:
        """Where a row has those held in double precision."""
        return tuple(at for at, name in enumerate(self.columns) if name in self.exact)

    @cached_property
    def _order(self) -> Tuple[int, ...]:
        """Where a row has the numbers in the order of a block's columns."""
        return self.singles + self.doubles

    @cached_property
    def row_size(self) -> int:
        """The bytes of a row."""
        return SINGLE * len(self.singles) + DOUBLE * len(self.doubles)

    def pack_rows(self, rows: Sequence[Optional[Row]]) -> Block:
        """These rows as a block, None for one that wasn't measured. What isn't a number is no answer."""
        unmeasured = (None,) * len(self.columns)
        columns = list(zip(*[unmeasured if row is None else row for row in rows])) if rows else []
        ordered = self._order if rows else ()
        numbers = [math.nan if n is None else n for at in ordered for n in columns[at]]
        form = _form(self, len(rows))
        try:
            data = form.pack(*numbers)
        except (OverflowError, struct.error):  # a slip in a probe must not cost the node its link
            data = form.pack(*(n if abs(n) <= MAX_SINGLE else math.nan for n in numbers))
        middle = SINGLE * len(rows) * len(self.singles)
        planes = [data[at:middle:SINGLE] for at in range(SINGLE)]
        planes += [data[middle + at :: DOUBLE] for at in range(DOUBLE)]
        return Block(self, len(rows), b"".join(planes))


@dataclass(frozen=True)
class Block:
    """Numbers of ``count`` rows, little-endian; NaN is no answer, and so is an infinite number."""

    layout: BlockLayout
    count: int
    data: bytes

    @property
    def rows(self) -> Tuple[Row, ...]:
        """The rows as numbers, for the few that somebody looks at; None for no answer."""
        layout, count = self.layout, self.count
        numbers = _form(layout, count).unpack(self._numbers())
        answers = [n if math.isfinite(n) else None for n in numbers]
        columns: List[Sequence[Optional[Number]]] = [()] * len(layout.columns)
        for begin, at in zip(range(0, len(answers), count or 1), layout.singles + layout.doubles):
            columns[at] = answers[begin : begin + count]
        return tuple(zip(*columns)) if columns else ((),) * count

    def _numbers(self) -> bytes:
        data = bytearray(self.data)
        middle = SINGLE * self.count * len(self.layout.singles)
        length = middle // SINGLE
        for at in range(SINGLE):
            data[at:middle:SINGLE] = self.data[at * length : (at + 1) * length]
        length = (len(data) - middle) // DOUBLE
        for at in range(DOUBLE):
            data[middle + at :: DOUBLE] = self.data[middle + at * length : middle + (at + 1) * length]
        return bytes(data)


@lru_cache(maxsize=16)
def _form(layout: BlockLayout, rows: int) -> struct.Struct:
    return struct.Struct(f"<{rows * len(layout.singles)}f{rows * len(layout.doubles)}d")
