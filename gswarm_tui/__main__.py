"""``python -m gswarm_tui`` is ``gswarm-tui``."""

from __future__ import annotations

import sys

from gswarm_tui.cli import main

if __name__ == "__main__":
    sys.exit(main())
