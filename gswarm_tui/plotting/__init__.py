"""Plots of sessions: their data from a recording, and their drawing. The only home of matplotlib."""

from __future__ import annotations

import logging

# Hide matplotlib's warning that it uses a temporary folder if the home folder is read-only.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
