"""The part of gswarm-tui that runs on a node: reads GPUs and host, and sends frames to the recorder."""

from __future__ import annotations

__version__ = "0.1.0"
