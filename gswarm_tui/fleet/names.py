"""Natural order of node names."""

from __future__ import annotations

import re


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that puts gpu9 before gpu10."""
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+", name)  # Python refuses numbers of 4,300 digits
    return tuple((0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts)
