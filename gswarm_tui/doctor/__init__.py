"""Checks of ``gswarm-tui doctor``: reports of nodes and of this machine, and rules over them."""
