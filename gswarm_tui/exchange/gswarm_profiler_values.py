"""Values in the JSON of gswarm-profiler, as documented or as its program writes them.

Its documentation has percent as 0–100 and bandwidth in GB/s. Its program (``collect_gpu_metrics`` and
``collect_and_store_frame`` of 0.4) writes texts: shares as 0–1, PCIe in KiB/s as nvitop gives it, with bytes
sent by the GPU in ``dram_bandwidth_rx`` and received in ``dram_bandwidth_tx``. So numbers are read as
documented and texts as written, unless a text has a unit or ``--units`` decides.
"""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from gswarm_tui.common.errors import quote
from gswarm_tui.exchange.time_windows import utc_micros

FIRST_YEAR, LAST_YEAR = 1971, 2500

Values = npt.NDArray[np.float64]


class Units(StrEnum):
    """Units of values without one; ``AUTO`` reads texts as written by the program, numbers as documented."""

    AUTO = "auto"
    DOCUMENTED = "documented"
    WRITTEN = "written"


class WrongValueError(ValueError):
    """Raised for an invalid value; the message gives the reason."""


_TEXT = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(%|[kKMG]?i?B/s)?\s*", re.ASCII)
_UNMEASURED = frozenset({"", "nan", "n/a", "none", "null", "-"})
_BANDWIDTHS = {
    "B/s": 1e-6,
    "kB/s": 1e-3,
    "KB/s": 1e-3,
    "KiB/s": 1024e-6,
    "MB/s": 1.0,
    "MiB/s": 1024**2 * 1e-6,
    "GB/s": 1e3,
    "GiB/s": 1024**3 * 1e-6,
}


@dataclass(frozen=True)
class Kind:
    """Shares in percent, or bandwidths in MB/s: factors of units and of numbers without one, and the highest.

    Numbers without a unit have a factor as ``documented`` and one as ``written`` by the program.
    """

    name: str
    units: dict[str, float]
    documented: float
    written: float
    top: float


SHARE = Kind("share", {"%": 1}, 1, 100, 100)
INTERVAL = Kind("time in ms", {}, 1, 1, 1e6)
TRAFFIC = Kind("bandwidth", _BANDWIDTHS, _BANDWIDTHS["GB/s"], _BANDWIDTHS["KiB/s"], 1e8)


def as_written(value: Any, units: Units) -> bool:
    """Return whether a value is as the program writes it, which also swaps rx and tx."""
    return units is Units.WRITTEN or (units is Units.AUTO and isinstance(value, str))


def parse(value: Any, kind: Kind, units: Units) -> float:
    """Parse a value into percent or MB/s, NaN where unmeasured. Raises WrongValueError."""
    unit = ""
    if value is None or (isinstance(value, str) and value.strip().lower() in _UNMEASURED):
        return math.nan
    if isinstance(value, str):
        if (match := _TEXT.fullmatch(value[:100])) is None:
            raise WrongValueError(f"{quote(value)} isn't a number")
        number, unit = float(match[1]), match[2] or ""
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            raise WrongValueError("it is too large") from None
    else:
        raise WrongValueError("it isn't a number")
    if unit and unit not in kind.units:
        raise WrongValueError(f"{unit} isn't a unit of a {kind.name}")
    written = as_written(value, units)
    factor = kind.units[unit] if unit else kind.written if written else kind.documented
    if not math.isnan(number) and not 0 <= number * factor <= kind.top:
        hint = " as a share from 0 to 1; --units documented reads it as percent"
        raise WrongValueError(f"{number:g} is out of range{hint * (kind is SHARE and written and not unit)}")
    return number * factor


@dataclass(frozen=True)
class ProfilerFrame:
    """A frame of gswarm-profiler: its time in Unix microseconds, its GPUs, and arrays with a value for each.

    Shares are in percent, bandwidths in MB/s, intervals in ms; NaN is unmeasured.
    Only files of gswarm-tui have intervals.
    """

    us: int
    gpus: list[str]
    util_pct: Values
    memory_pct: Values
    pcie_rx_mb_s: Values
    pcie_tx_mb_s: Values
    nvlink_rx_mb_s: Values
    nvlink_tx_mb_s: Values
    interval_ms: Values | None

    @property
    def measured(self) -> npt.NDArray[np.bool_]:
        """Whether each GPU has any value in the frame."""
        columns = (self.util_pct, self.memory_pct, self.pcie_rx_mb_s, self.pcie_tx_mb_s)
        missing = np.isnan(np.array([*columns, self.nvlink_rx_mb_s, self.nvlink_tx_mb_s]))
        measured: npt.NDArray[np.bool_] = np.logical_not(missing.all(axis=0))
        return measured


def read_frame(frame: Any, units: Units) -> ProfilerFrame:
    """Parse a frame. Raises WrongValueError.

    Ignores an array of pairs in ``gpu_bandwidth``: the program writes the capacity of NVLink there.
    """
    if not isinstance(frame, dict):
        raise WrongValueError("a frame should be an object")
    names = frame.get("gpu_id")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise WrongValueError("a frame's gpu_id should be an array of strings")
    if len(set(names)) != len(names):
        raise WrongValueError("a frame's gpu_id lists a GPU twice")

    def column(field: str, kind: Kind) -> Values:
        values = frame.get(field)
        if values is None:
            return np.full(len(names), np.nan)
        if not isinstance(values, list) or len(values) != len(names):
            raise WrongValueError(f"{field} should be an array with a value for each gpu_id")
        try:
            return _column(values, kind, units)
        except WrongValueError as error:
            raise WrongValueError(f"{field}: {error}") from None

    received, sent = column("dram_bandwidth_rx", TRAFFIC), column("dram_bandwidth_tx", TRAFFIC)
    if any(as_written(value, units) for value in frame.get("dram_bandwidth_rx") or ()):
        received, sent = sent, received
    return ProfilerFrame(
        us=moment(frame.get("time")),
        gpus=names,
        util_pct=column("gpu_util", SHARE),
        memory_pct=column("gpu_memory", SHARE),
        pcie_rx_mb_s=received,
        pcie_tx_mb_s=sent,
        nvlink_rx_mb_s=column("gpu_bandwidth_rx", TRAFFIC),
        nvlink_tx_mb_s=column("gpu_bandwidth_tx", TRAFFIC),
        interval_ms=column("interval_ms", INTERVAL) if "interval_ms" in frame else None,
    )


def _column(values: list[Any], kind: Kind, units: Units) -> Values:
    """Parse a frame's values of one field, plain ones at once. Raises WrongValueError."""
    if len(types := set(map(type, values))) == 1 and types <= {int, float, str}:
        with contextlib.suppress(ValueError, OverflowError):
            numbers = np.array(values).astype(np.float64)
            found: Values = numbers * (kind.written if as_written(values[0], units) else kind.documented)
            if not ((found < 0) | (found > kind.top)).any():
                return found
    return np.array([parse(value, kind, units) for value in values])


def moment(text: Any) -> int:
    """Parse an ISO 8601 time into Unix microseconds; without a zone it is local, as the program writes it.

    Raises WrongValueError.
    """
    if not isinstance(text, str):
        raise WrongValueError("a time should be a string such as 2026-01-31T12:00:00")
    try:
        at = datetime.fromisoformat(text[:60]).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        raise WrongValueError(f"{quote(text)} isn't a time such as 2026-01-31T12:00:00") from None
    if not FIRST_YEAR <= at.year < LAST_YEAR:
        raise WrongValueError(f"{quote(text)} is out of range")
    return utc_micros(at)
