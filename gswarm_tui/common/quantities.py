"""Formats of quantities for screens, printed tables and reports; "–" where nothing was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

DASH = "–"


def percent(value: float | None) -> str:
    """Format a percentage: "71 %"."""
    return DASH if value is None or math.isnan(value) else f"{value:.0f} %"


def formatted(value: float | None, pattern: str) -> str:
    """Format a number by a pattern of ``str.format``, with a space before a percent sign."""
    return DASH if value is None else pattern.format(value).replace("%", " %")


def _scaled(value: float, step: float, units: tuple[str, ...]) -> str:
    for unit in units[:-1]:
        if abs(value) < (999.5 if step == 1000 else 1023.5):
            return f"{_three(value)} {unit}".rstrip()
        value /= step
    return f"{_three(value)} {units[-1]}"


def _three(value: float) -> str:
    if value == int(value) and abs(value) < 1000:
        return f"{value:.0f}"
    return f"{value:.2f}" if abs(value) < 9.995 else f"{value:.1f}" if abs(value) < 99.95 else f"{value:,.0f}"


def count(value: float) -> str:
    """Format a count: "999", "1.20 k", "12.3 M"."""
    return _scaled(value, 1000, ("", "k", "M", "G", "T"))


def file_size(size: float) -> str:
    """Format bytes on disk, decimal as in file managers: "14.0 MB"."""
    return _scaled(size, 1000, ("B", "kB", "MB", "GB", "TB"))


def megabytes(value: float | None) -> str:
    """Format a volume given in MB: "812 MB", "11.2 GB"."""
    return DASH if value is None else file_size(1e6 * value)


def mebibytes(value: float | None) -> str:
    """Format memory given in MiB: "612 MiB", "79.6 GiB", "2.10 TiB"."""
    return DASH if value is None or math.isnan(value) else _scaled(value, 1024, ("MiB", "GiB", "TiB", "PiB"))


def used_of(used_mib: float | None, total_mib: float | None) -> str:
    """Format used and total memory in the unit of the total: "2.1/2.5 TiB"."""
    if total_mib is None or math.isnan(total_mib):
        return mebibytes(used_mib)
    total = mebibytes(total_mib)
    if used_mib is None or math.isnan(used_mib):
        return f"{DASH}/{total}"
    number, unit = total.split(" ")
    steps = ("MiB", "GiB", "TiB", "PiB").index(unit)
    return f"{_three(used_mib / 1024**steps)}/{number} {unit}"


def celsius(value: float | None) -> str:
    """Format a temperature: "61 °C"."""
    return DASH if value is None or math.isnan(value) else f"{value:.0f} °C"


def watts(value: float | None) -> str:
    """Format power: "612 W", "18.4 kW"."""
    return DASH if value is None or math.isnan(value) else _scaled(value, 1000, ("W", "kW", "MW"))


def energy(joules: float | None) -> str:
    """Format energy given in joules: "0.78 Wh", "3.82 Wh", "18.4 kWh"."""
    if joules is None or math.isnan(joules):
        return DASH
    return _scaled(joules / 3600, 1000, ("Wh", "kWh", "MWh"))


def rate(mb_s: float | None) -> str:
    """Format a rate given in MB/s: "812 MB/s", "11.2 GB/s"."""
    return DASH if mb_s is None or math.isnan(mb_s) else _scaled(mb_s, 1000, ("MB/s", "GB/s", "TB/s"))


def duration(seconds: float | None) -> str:
    """Format a duration: "0.4 s", "22 s", from 100 s on "00:12:31", "2 d 03:04:05"."""
    if seconds is None:
        return DASH
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f}".removesuffix(".0") + " s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    days, rest = divmod(max(100, int(seconds)), 86400)
    text = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days} d {text}" if days else text


def held(seconds: float) -> str:
    """Format a duration inside a sentence, as people write it: "22 s", "4 min", "1 h 12 min", "2 d 3 h"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    parts = (minutes // 60, "h"), (minutes % 60, "min")
    if hours >= 48:
        parts = (hours // 24, "d"), (hours % 24, "h")
    return " ".join(f"{number} {unit}" for number, unit in parts if number)


def brief_time(ns: float | None) -> str:
    """Format a time given in nanoseconds, as of a kernel: "812 ns", "17.7 ms", "1.20 s"."""
    return DASH if ns is None or math.isnan(ns) else _scaled(ns, 1000, ("ns", "µs", "ms", "s"))


def elapsed(seconds: float) -> str:
    """Format a duration that grows on the screen, in whole seconds."""
    return duration(int(max(0.0, seconds)))


def gpu_time(seconds: float | None) -> str:
    """Format time added up over GPUs: "45 GPU-s", "22.9 GPU-min", "1,024 GPU-h"."""
    if seconds is None or math.isnan(seconds):
        return DASH
    for limit, size, unit in ((99.5, 1, "s"), (99.5 * 60, 60, "min")):
        if seconds < limit:
            return f"{_three(seconds / size)} GPU-{unit}"
    return f"{_three(seconds / 3600)} GPU-h"


def age(seconds: float) -> str:
    """Format how long ago something was, as one number and its unit: "12 s", "4 min", "3 h", "2 d"."""
    for limit, size, unit in ((100, 1, "s"), (100 * 60, 60, "min"), (48 * 3600, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def first_of(names: Sequence[str], most: int, rest: str = "") -> str:
    """List the first names, and how many more there are: "n1, n2 and 30 more", with ``rest`` behind it."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more{rest}" if more > 0 else "")


def plural(number: int, noun: str) -> str:
    """Format a count with its noun: "1 node", "4 nodes", "1,024 nodes"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
