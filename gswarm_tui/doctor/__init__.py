"""Checks of ``gswarm-tui doctor``: reports of nodes and of this machine, rules over them, the bundle."""
