"""The command: parts are chosen and put together here, and only here."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from gswarm_tui.arguments import parse
from gswarm_tui.errors import UserError
from gswarm_tui.plan import resolve_nodes
from gswarm_tui.slurm import Slurm


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (None: the process's own); the exit status."""
    try:
        options = parse(argv, os.environ)
        plan = resolve_nodes(options, os.environ, Slurm())
    except UserError as error:
        print(f"gswarm-tui: {error}", file=sys.stderr)
        return 2
    print("\n".join(plan.nodes))
    return 0
