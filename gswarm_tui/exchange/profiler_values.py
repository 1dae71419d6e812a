"""Values in the JSON of gswarm-profiler, as its documentation has them or as its program writes them.

Its documentation has percent as 0–100 and bandwidth in GB/s. Its program (``collect_gpu_metrics`` and
``collect_and_store_frame`` of 0.4) writes texts: shares as 0–1, PCIe in KiB/s as nvitop gives it, with what
the GPU sent in ``dram_bandwidth_rx`` and what it received in ``dram_bandwidth_tx``. So numbers are taken as
documented and texts as written, unless a text has a unit or a person knows better.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from gswarm_tui.common.errors import quote
from gswarm_tui.exchange.time_windows import micros

FIRST_YEAR, LAST_YEAR = 1971, 2500

Values = npt.NDArray[np.float64]


class Units(StrEnum):
    """How values without a unit are meant; ``AUTO`` takes texts as written and numbers as documented."""

    AUTO = "auto"
    DOCUMENTED = "documented"
    WRITTEN = "written"


class WrongValueError(ValueError):
    """A value that can't be; the message says why."""


_TEXT = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(%|[kKMG]?i?B/s)?\s*", re.ASCII)
_NOTHING = frozenset({"", "nan", "n/a", "none", "null", "-"})
_FACTORS = {
    "B/s": 1e-6,
    "kB/s": 1e-3,
    "KB/s": 1e-3,
    "KiB/s": 1024e-6,
    "MB/s": 1.0,
    "MiB/s": 1024**2 * 1e-6,
    "GB/s": 1e3,
    "GiB/s": 1024**3 * 1e-6,
}
_MOST_MB_S = 1e8


def share(value: Any, units: Units) -> float | None:
    """A share in percent, None where nothing was measured. Raises WrongValueError."""
    number, unit, as_written = _read(value, units)
    if number is None:
        return None
    percent = number * 100 if as_written and not unit else number
    if unit not in {"", "%"}:
        raise WrongValueError(f"{unit} is no unit of a share")
    if not 0 <= percent <= 100:
        why = (
            " as a share from 0 to 1; --units documented takes it as percent"
            if as_written and not unit
            else ""
        )
        raise WrongValueError(f"{number:g} is out of range{why}")
    return percent


def traffic(value: Any, units: Units) -> float | None:
    """Bytes per time in MB/s, None where nothing was measured. Raises WrongValueError."""
    number, unit, as_written = _read(value, units)
    if number is None:
        return None
    if unit == "%":
        raise WrongValueError("% is no unit of a bandwidth")
    factor = _FACTORS[unit or ("KiB/s" if as_written else "GB/s")]
    if not 0 <= number * factor <= _MOST_MB_S:
        raise WrongValueError(f"{number:g} is out of range")
    return number * factor


def as_written(value: Any, units: Units) -> bool:
    """Whether a value is as the program writes it, so that rx stands for tx, too."""
    return units is Units.WRITTEN or (units is Units.AUTO and isinstance(value, str))


def _read(value: Any, units: Units) -> tuple[float | None, str, bool]:
    """The number, its unit if it has one, and whether it is meant as the program writes it."""
    if value is None:
        return None, "", False
    if isinstance(value, str):
        if value.strip().lower() in _NOTHING:
            return None, "", False
        if (found := _TEXT.fullmatch(value[:100])) is None:
            raise WrongValueError(f"{quote(value)} is no number")
        number, unit = float(found[1]), found[2] or ""
        if unit and unit != "%" and unit not in _FACTORS:
            raise WrongValueError(f"{unit} is no known unit")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number, unit = float(value), ""
        except OverflowError:
            raise WrongValueError("it is too large") from None
    else:
        raise WrongValueError("it is no number")
    if math.isnan(number):
        return None, "", False
    return number, unit, as_written(value, units)


@dataclass(frozen=True)
class ProfilerFrame:
    """A frame: its time in Unix microseconds, its GPUs, and arrays with a value for each.

    Shares are in percent, bandwidth is in MB/s, NaN stands where nothing was measured.
    """

    us: int
    gpus: list[str]
    util_pct: Values
    memory_pct: Values
    pcie_rx_mb_s: Values
    pcie_tx_mb_s: Values
    nvlink_rx_mb_s: Values
    nvlink_tx_mb_s: Values

    @property
    def answered(self) -> npt.NDArray[np.bool_]:
        """Of which GPUs the frame says more than the name."""
        columns = (self.util_pct, self.memory_pct, self.pcie_rx_mb_s, self.pcie_tx_mb_s)
        missing = np.isnan(np.array([*columns, self.nvlink_rx_mb_s, self.nvlink_tx_mb_s]))
        answered: npt.NDArray[np.bool_] = np.logical_not(missing.all(axis=0))
        return answered


def read_frame(frame: Any, units: Units) -> ProfilerFrame:
    """What a frame says. Raises WrongValueError.

    An array of pairs in ``gpu_bandwidth`` is left: the program writes what NVLink could carry there.
    """
    if not isinstance(frame, dict):
        raise WrongValueError("a frame should be an object")
    names = frame.get("gpu_id")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise WrongValueError("a frame's gpu_id should be an array of texts")
    if len(set(names)) != len(names):
        raise WrongValueError("a frame's gpu_id has a GPU twice")

    def column(field: str, kind: _Kind) -> Values:
        values = frame.get(field)
        if values is None:
            return np.full(len(names), np.nan)
        if not isinstance(values, list) or len(values) != len(names):
            raise WrongValueError(f"{field} should be an array with a value for each gpu_id")
        try:
            return _column(values, kind, units)
        except WrongValueError as error:
            raise WrongValueError(f"{field}: {error}") from None

    received, sent = column("dram_bandwidth_rx", _TRAFFIC), column("dram_bandwidth_tx", _TRAFFIC)
    if any(as_written(value, units) for value in frame.get("dram_bandwidth_rx") or ()):
        received, sent = sent, received
    return ProfilerFrame(
        us=moment(frame.get("time")),
        gpus=names,
        util_pct=column("gpu_util", _SHARE),
        memory_pct=column("gpu_memory", _SHARE),
        pcie_rx_mb_s=received,
        pcie_tx_mb_s=sent,
        nvlink_rx_mb_s=column("gpu_bandwidth_rx", _TRAFFIC),
        nvlink_tx_mb_s=column("gpu_bandwidth_tx", _TRAFFIC),
    )


@dataclass(frozen=True)
class _Kind:
    """Shares or traffic: how one value is read, and what whole arrays of plain ones are multiplied by."""

    read: Callable[[Any, Units], float | None]
    documented: float
    written: float
    top: float


_SHARE = _Kind(share, 1, 100, 100)
_TRAFFIC = _Kind(traffic, _FACTORS["GB/s"], _FACTORS["KiB/s"], _MOST_MB_S)


def _column(values: list[Any], kind: _Kind, units: Units) -> Values:
    """A frame's values of one field: plain ones at once, others one by one. Raises WrongValueError."""
    if len(types := set(map(type, values))) == 1 and types <= {int, float, str}:
        with contextlib.suppress(ValueError, OverflowError):
            numbers = np.array(values).astype(np.float64)
            found: Values = numbers * (kind.written if as_written(values[0], units) else kind.documented)
            if not ((found < 0) | (found > kind.top)).any():
                return found
    read = [kind.read(value, units) for value in values]
    return np.array([np.nan if value is None else value for value in read])


def moment(text: Any) -> int:
    """A time in ISO 8601 as Unix microseconds; without a zone it is this machine's, as the program writes it.

    Raises WrongValueError.
    """
    if not isinstance(text, str):
        raise WrongValueError("a time should be a text as in 2026-01-31T12:00:00")
    try:
        at = datetime.fromisoformat(text[:60]).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        raise WrongValueError(f"{quote(text)} is no time as in 2026-01-31T12:00:00") from None
    if not FIRST_YEAR <= at.year < LAST_YEAR:
        raise WrongValueError(f"{quote(text)} is out of range")
    return micros(at)
