"""Hints for commands of gswarm-profiler: what does the same in gswarm-tui."""

from __future__ import annotations

_SESSION = "`gswarm-tui session start NAME` starts a session"

COMMANDS = {
    "start": "`gswarm-tui` records with a screen, `gswarm-tui record` without one",
    "connect": "gswarm-tui starts its agents itself, on --nodes or the nodes of the job",
    "http-profile": _SESSION,
    "http-status": "`gswarm-tui status` prints the state of your running gswarm-tui",
    "stop": "`gswarm-tui session stop [NAME]` ends sessions, `gswarm-tui recording stop` ends the recording",
    "http-stop": "`gswarm-tui session stop [NAME]` ends sessions",
    "stat": "`gswarm-tui import FILE.json` reads its files, then `gswarm-tui summary` and "
    "`gswarm-tui plot -o FILE.pdf` describe a session",
}
"""Commands that aren't ours, and the sentence that answers them."""
