"""Memory that queries may use while the recorder writes, computed from the machine's free memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

SHARE = 4
"""Queries get this share of the free memory: other users of a login node need the rest."""
MOST_BYTES = 1024**3
LEAST_BYTES = 64 * 1024**2
"""With less, even small queries fail."""


def query_memory(root: Path = Path("/")) -> int:
    """Return how many bytes all queries together may use now; ``root`` holds ``proc`` and ``sys``."""
    left = min(_available(root), default=SHARE * MOST_BYTES)
    return max(LEAST_BYTES, min(left // SHARE, MOST_BYTES))


def _available(root: Path) -> Iterator[int]:
    """Yield the free bytes of the machine, and of each control group around this process."""
    with suppress(OSError):
        found = re.search(r"^MemAvailable: *(\d+) kB", (root / "proc/meminfo").read_text(), re.MULTILINE)
        if found:
            yield int(found[1]) * 1024
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                yield from _left_in_groups(root / "sys/fs/cgroup", path, "memory.max", "memory.current")
            elif "memory" in controllers.split(","):  # version 1
                mounted, limit = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
                yield from _left_in_groups(mounted, path, limit, "memory.usage_in_bytes")


def _left_in_groups(mounted: Path, path: str, limit: str, used: str) -> Iterator[int]:
    """Yield the free bytes of a group and its parents; file caches count as free: the kernel drops them."""
    group = PurePosixPath(path.lstrip("/"))
    for one in (group, *group.parents):
        with suppress(OSError, ValueError):  # no such group, or no limit ("max")
            bound = int((mounted / one / limit).read_text())
            statistics = (mounted / one / "memory.stat").read_text()
            cached = re.search(r"^(?:total_)?inactive_file (\d+)", statistics, re.MULTILINE)
            yield max(0, bound - int((mounted / one / used).read_text()) + (int(cached[1]) if cached else 0))
