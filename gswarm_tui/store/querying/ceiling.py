"""A ceiling over this process's memory while queries of others run in it.

DuckDB's own bound is for what it keeps in blocks. A value that a function makes, such as a list of a billion
numbers, is allocated outside of it, and would have the kernel end the whole recorder.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


class Ceiling:
    """Lets the process map so many bytes more than it has, while it is set; asking for more fails there."""

    def __init__(self, headroom: int) -> None:
        self._headroom = headroom
        self._before: tuple[int, int] | None = None

    def set(self) -> None:
        """From now on; a lower limit that is there already stays."""
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = _mapped() + self._headroom
        if self._before is None and (soft == resource.RLIM_INFINITY or most < soft):
            self._before = soft, hard
            resource.setrlimit(resource.RLIMIT_AS, (most, hard))

    def lift(self) -> None:
        """As it was before."""
        before, self._before = self._before, None
        if before is not None:
            resource.setrlimit(resource.RLIMIT_AS, before)


def _mapped() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE
