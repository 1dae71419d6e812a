"""Where one word ends and another begins: what live figures and those of a recording both go by."""

from __future__ import annotations

BUSY_FROM_PCT = 20.0
"""A GPU is busy from this utilisation on; below it an idle phase may begin (Omnistat's threshold)."""

STALE_INTERVALS = 3
"""A node is stale after so many intervals without a frame, and a recording has a hole."""
NEIGHBOURS = 1.5
"""Answers of a counter that are closer than so many intervals follow each other."""
