"""Limits for the import of a file that may come from a stranger.

A small file can unfold to any size, and one query on it can last for ever.
"""

from __future__ import annotations

import resource
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from gswarm_tui.profiling.report_text import ReportError

_REFUSED = "Out of Memory Error: Failed to allocate block", "Out of Memory Error: Allocation failure"
"""DuckDB's texts where this limit refuses memory; its own limit has others."""
_AGAIN_S = 10.0
"""The alarm rings again after this time, as an exception that it raises within SQLite can be lost."""
_SIGNALS = (signal.SIGALRM, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Limits:
    """Memory and time that an import may take."""

    memory_mib: int = 2048
    seconds: float = 600.0


LIMITS = Limits()


def lift_memory_limit() -> tuple[int, int]:
    """Lift the limit of memory; return the former one, soft and hard."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (before[1], before[1]))
    return before


@contextmanager
def memory_unlimited() -> Iterator[None]:
    """Lift the limit of memory in the block: DuckDB has its own, and must not fail while it commits."""
    before = lift_memory_limit()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


@contextmanager
def bounded(path: Path, limits: Limits = LIMITS) -> Iterator[None]:
    """Limit the memory that the block takes beyond what this process has, and the block's time.

    The tools that it starts inherit the limit of memory. SIGTERM and SIGHUP end this program by an exception,
    so that it removes what it began. Outside the main thread, where no signal arrives, nothing is limited.

    Raises ReportError if a limit is met.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        sys.exit(128 + number)

    pages = int(Path("/proc/self/statm").read_text().split()[5])
    most = pages * resource.getpagesize() + (limits.memory_mib << 20)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    handlers = {number: signal.signal(number, stop) for number in _SIGNALS}
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))
    signal.setitimer(signal.ITIMER_REAL, limits.seconds, _AGAIN_S)
    try:
        yield
    except BaseException as error:
        # SQLite replaces an exception of a signal that arrives during a query by its own.
        if received[:1] == [signal.SIGALRM]:
            raise ReportError(
                f"{path} takes more than {limits.seconds / 60:g} minutes to import; "
                "allow more with gswarm-tui import --max-minutes."
            ) from None
        if received:
            sys.exit(128 + received[0])
        if isinstance(error, MemoryError) or any(text in str(error) for text in _REFUSED):
            raise ReportError(
                f"{path} needs more than {limits.memory_mib:,} MiB of memory to be read; "
                "allow more with gswarm-tui import --max-memory-mib."
            ) from None
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        for number, handler in handlers.items():
            signal.signal(number, handler)
