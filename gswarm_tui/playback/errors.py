"""What stands in the way of playing."""

from __future__ import annotations


class UnreadableError(Exception):
    """What was recorded can't be read; the message is one sentence."""
