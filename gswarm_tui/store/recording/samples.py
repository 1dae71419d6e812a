"""Frames' blocks as columns of a table, turned once for the whole fleet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from gswarm_agent.block import Block, Layout
from gswarm_tui.fleet.blocks import numbers
from gswarm_tui.fleet.history import Floats, Singles
from gswarm_tui.store.sql.schema import Table

Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Keys:
    """What stands beside the numbers: ``of_frame`` is one value for all rows of a block, ``of_row`` one each.

    With ``if_answered``, rows without any number are left out.
    """

    of_frame: tuple[str, ...]
    of_row: tuple[str, ...] = ()
    if_answered: bool = False


_AT_ONCE = 16_384
"""The numbers of so many rows fit into a processor's cache; more at once take half as long again."""


class Samples:
    """What is to be added to one table: blocks, those of one layout and as many rows together."""

    def __init__(self, table: Table, keys: Keys) -> None:
        self.table = table
        self._keys = keys
        self._stacks: list[_Stack] = []
        # By the layout's identity: to tell that two are alike is left until all frames are there.
        self._open: dict[tuple[int, int], _Stack] = {}

    def add(self, block: Block, frame: Sequence[Any], rows: Sequence[Sequence[Any]] = ()) -> None:
        """One more block, with its keys in their order. Raises ValueError where they don't fit."""
        for values in rows:
            if len(values) != block.count:
                raise ValueError(f"{len(values)} rows were expected, not {block.count}")
        stack = self._open.get((id(block.layout), block.count))
        if stack is None or stack.size >= _AT_ONCE:
            stack = self._open[id(block.layout), block.count] = _Stack(block.layout, block.count)
            self._stacks.append(stack)
        stack.blocks.append(block.data)
        stack.frames.append(frame)
        stack.rows.append(rows)
        stack.size += block.count

    def columns(self) -> Iterator[Columns]:
        """All rows as arrays, thousands of one layout each; what the table has no column for is left out."""
        alike: dict[Layout, list[_Stack]] = {}
        for stack in self._stacks:
            alike.setdefault(stack.layout, []).append(stack)
        for stacks in alike.values():
            parts, size = [], 0
            for stack in stacks:
                parts.append(stack.columns(self.table, self._keys))
                size += stack.size
                if size >= _AT_ONCE or stack is stacks[-1]:
                    yield _joined(parts)
                    parts, size = [], 0


@dataclass
class _Stack:
    """Blocks of one layout and as many rows each, with the values of their keys; ``size`` rows in all."""

    layout: Layout
    count: int
    size: int = 0
    blocks: list[bytes] = field(default_factory=list)
    frames: list[Sequence[Any]] = field(default_factory=list)
    rows: list[Sequence[Sequence[Any]]] = field(default_factory=list)

    def columns(self, table: Table, keys: Keys) -> Columns:
        made = {
            name: np.repeat(array(table, name, values), self.count)
            for name, values in zip(keys.of_frame, zip(*self.frames, strict=True), strict=True)
        }
        for name, parts in zip(keys.of_row, zip(*self.rows, strict=True), strict=True):
            made[name] = array(table, name, list(chain.from_iterable(parts)))
        known = {column.name for column in table.columns}
        singles, doubles = self._numbers()
        for places, columns in ((self.layout.singles, singles), (self.layout.doubles, doubles)):
            for place, values in zip(places, columns, strict=True):
                name = self.layout.columns[place]
                # A node must not choose whose samples these are; of columns of one name the first counts.
                if name in known and name not in made:
                    made[name] = values
        if not keys.if_answered:
            return made
        answered = ~(np.isnan(singles).all(axis=0) & np.isnan(doubles).all(axis=0))
        return made if answered.all() else {name: values[answered] for name, values in made.items()}

    def _numbers(self) -> tuple[Singles, Floats]:
        """Shapes (columns, rows of all blocks), in single and in double precision; NaN for no answer."""
        total = len(self.blocks) * self.count
        singles, doubles = numbers(self.layout, self.count, self.blocks)
        found = singles.reshape(len(singles), total), doubles.reshape(len(doubles), total)
        for columns in found:
            columns[~np.isfinite(columns)] = np.nan  # also for those NaN that NumPy warns of
        return found


def _joined(parts: Sequence[Columns]) -> Columns:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def array(table: Table, name: str, values: Iterable[Any]) -> npt.NDArray[Any]:
    """Values of one column; NaN, NaT and None stand for NULL."""
    match table[name].type:
        case "TIMESTAMP":
            return np.array(values, dtype="datetime64[us]")
        case "VARCHAR":
            # Most are said again in every frame, so each is made clean once.
            clean = {v: v if v is None else v.encode("utf-8", "replace").decode() for v in set(values)}
            return np.array([clean[v] for v in values], dtype=object)
        case "BOOLEAN":
            return np.array(values, dtype=object)
        case _:
            return np.array(values, dtype=np.float64)
