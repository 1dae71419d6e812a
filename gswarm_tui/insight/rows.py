"""Ports or mounts of all nodes as arrays, as they are now and at each of the last minutes. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gswarm_tui.fleet.history import Floats

Listing = Mapping[str, Mapping[str, float | None]]
"""Ports or mounts of a node by name, each with its values by column."""


class Rows:
    """Some columns of the ports or mounts of all nodes, NaN where unknown.

    ``keys`` are the node and name of each row, in the order of rows; rows are only added. ``listed`` tells
    which are in the newest listing of their node.
    """

    def __init__(self, columns: tuple[str, ...], minutes: int) -> None:
        self.keys: list[tuple[str, str]] = []
        self.listed = np.empty(0, dtype=bool)
        self._columns = columns
        self._place: dict[tuple[str, str], int] = {}
        self._newest: dict[str, Listing] = {}
        self._now = self._first = np.empty((len(columns), 0))
        self._minutes = np.empty((minutes, len(columns), 0))

    def update(self, listings: Mapping[str, Listing]) -> None:
        """Take over the listings that have changed since the last time."""
        for node, listing in listings.items():
            if self._newest.get(node) is listing:
                continue
            for key in [(node, name) for name in listing if (node, name) not in self._place]:
                self._place[key] = len(self.keys)
                self.keys.append(key)
            if new := len(self.keys) - len(self.listed):
                self.listed = np.append(self.listed, np.zeros(new, dtype=bool))
                self._now, self._first, self._minutes = (
                    np.concatenate((old, np.full((*old.shape[:-1], new), np.nan)), axis=-1)
                    for old in (self._now, self._first, self._minutes)
                )
            before = [self._place[node, name] for name in self._newest.get(node, ())]
            self.listed[before], self._now[:, before] = False, np.nan
            self._newest[node] = listing
            places = [self._place[node, name] for name in listing]
            values = [[row.get(column) for column in self._columns] for row in listing.values()]
            self.listed[places], self._now[:, places] = True, np.array(values, dtype=np.float64).T
            known = self._first[:, places]
            self._first[:, places] = np.where(np.isnan(known), self._now[:, places], known)

    def keep(self) -> None:
        """Keep what is known now as the newest minute."""
        self._minutes[:-1] = self._minutes[1:].copy()
        self._minutes[-1] = self._now

    def now(self, column: str) -> Floats:
        """Return the newest values of a column."""
        return self._now[self._columns.index(column), :]

    def first(self, column: str) -> Floats:
        """Return the first values of a column that were known."""
        return self._first[self._columns.index(column), :]

    def minutes(self, column: str, count: int) -> Floats:
        """Return a column at the last minutes, oldest first: (minutes, rows)."""
        return self._minutes[-count:, self._columns.index(column)]
