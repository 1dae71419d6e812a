"""Search for shared libraries without a compiler, while asyncssh is imported.

asyncssh looks for two optional libraries then. One that the linker's cache lacks is searched with gcc and ld,
ten processes in all: 25 ms here, more where gcc is a slow wrapper, as on some login nodes.
"""

from __future__ import annotations

import ctypes.util
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def linker_cache_alone() -> Iterator[None]:
    """Let ``ctypes.util.find_library`` ask the linker's cache alone, where this Python can."""
    usual = ctypes.util.find_library
    ctypes.util.find_library = getattr(ctypes.util, "_findSoname_ldconfig", usual)
    try:
        yield
    finally:
        ctypes.util.find_library = usual
