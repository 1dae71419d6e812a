"""Results of queries by column, as NumPy arrays, and as plain values of messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gswarm_tui.store.querying.results import QuerySource

Arrays = Mapping[str, npt.NDArray[Any]]


class ArraySource(QuerySource, Protocol):
    """A QuerySource that also returns results by column."""

    def arrays(self, sql: str, *values: object) -> Arrays:
        """Return the whole result by column, masked where NULL. Raises QueryError, StoreError."""


def pack_arrays(arrays: Arrays) -> dict[str, Any]:
    """Return arrays as plain values: numbers as bytes with their type and mask, anything else as lists."""
    packed: dict[str, Any] = {}
    for name, array in arrays.items():
        if array.dtype.kind in "biuf":
            mask = np.ma.getmaskarray(array).tobytes() if np.ma.is_masked(array) else None
            packed[name] = [array.dtype.str, np.ma.getdata(array).tobytes(), mask]
        else:
            packed[name] = array.tolist()
    return packed


def unpack_arrays(packed: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of ``pack_arrays``; those that aren't numbers hold None where masked."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, column in packed.items():
        if len(column) == 3 and isinstance(column[1], bytes):
            kind, data, mask = column
            array = np.frombuffer(data, dtype=np.dtype(kind))
            if mask is not None:
                array = np.ma.MaskedArray(array, np.frombuffer(mask, dtype=np.bool_))
            arrays[name] = array
        else:
            array = np.empty(len(column), dtype=object)
            array[:] = column
            arrays[name] = array
    return arrays
