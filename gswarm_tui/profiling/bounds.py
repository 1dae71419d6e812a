"""Bounds of the import of a file from a stranger: a small file can unfold to any size, and take any time."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gswarm_tui.common.processes import cleaning_up
from gswarm_tui.profiling.report_text import ReportError

MEMORY_MIB = 2048
_REFUSED = "Out of Memory Error: Failed to allocate block", "Out of Memory Error: Allocation failure"
"""DuckDB's texts where this limit refuses memory; its own limit has others."""


@contextmanager
def bounded(path: Path, memory_mib: int = MEMORY_MIB) -> Iterator[None]:
    """Limit the memory that the block, and the tools that it starts, take beyond what this process has.

    SIGTERM and SIGHUP end the block by an exception, as Ctrl-C does, so that it removes what it wrote.

    Raises ReportError if the limit is met.
    """
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    most = pages * resource.getpagesize() + (memory_mib << 20)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))
    try:
        with cleaning_up():
            yield
    except Exception as error:
        if isinstance(error, MemoryError) or any(text in str(error) for text in _REFUSED):
            raise ReportError(
                f"{path} needs more than {memory_mib:,} MiB of memory to be read; "
                "allow more with gswarm-tui import --max-memory-mib."
            ) from None
        raise
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
