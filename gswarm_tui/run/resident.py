"""What of this process stays in memory: libraries' code that only their start needed doesn't."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from pathlib import Path

_CODE = "r-xp"


def let_go_of_code(maps: Path = Path("/proc/self/maps")) -> None:
    """Let go of all pages of code; those in use come back from the kernel's cache as they are missed.

    A library's start runs through much that isn't used again: DuckDB's alone leaves 30 MB, of which two
    thirds come back. Pages of code are as they are in their file, so nothing is lost; those of data aren't,
    as the linker writes to them.
    """
    with suppress(OSError, AttributeError, ValueError):
        advise = ctypes.CDLL(None).madvise
        for line in maps.read_text().splitlines():
            span, rights, _, _, _, *file = line.split(maxsplit=5)
            if rights == _CODE and file and file[0].startswith("/"):
                start, end = (int(edge, 16) for edge in span.split("-"))
                advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)
