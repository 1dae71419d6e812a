"""gswarm-tui: monitor and profile multi-node GPU jobs from the terminal."""

from gswarm_agent import __version__

__all__ = ["__version__"]
