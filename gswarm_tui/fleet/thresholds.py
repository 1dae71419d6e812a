"""Thresholds shared by the live screens and the summaries of recordings."""

from __future__ import annotations

BUSY_FROM_PCT = 20.0
"""A GPU is busy at this utilisation or above, idle below it (Omnistat's threshold)."""

STALE_INTERVALS = 3
"""A node is stale after this many intervals without a frame, and a recording has a gap."""
