"""Plots of sessions: loads their data from a recording and draws them. Only this room uses matplotlib."""

from __future__ import annotations

import logging

# Hide matplotlib's warning that it uses a temporary folder if the home folder is read-only.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
