"""``python -m gswarm_tui`` is ``gswarm-tui``."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line and return the exit status; Ctrl-C also counts while modules load."""
    try:
        from gswarm_tui import cli

        return cli.main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
