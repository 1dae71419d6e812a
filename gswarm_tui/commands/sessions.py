"""``gswarm-tui sessions``: what was named in a recording."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing

from gswarm_tui.analysis import spans
from gswarm_tui.arguments import CommandParser
from gswarm_tui.commands.finding import open_source


def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print the sessions of a recording. Raises UserError, StoreError."""
    parser = CommandParser("sessions", "[--db PATH]", "List the sessions of a recording.")
    asked = parser.read(words)
    with closing(open_source(asked.db, environ)) as source:
        from gswarm_tui.printing.table import show

        found = spans.sessions(source)
        rows = [(str(one.session_id), one.name, f"{one.seconds:.0f} s", one.status) for one in found]
        show(("id", "session", "duration", "status"), rows, sys.stdout, right=frozenset({0, 2}))
    return 0
