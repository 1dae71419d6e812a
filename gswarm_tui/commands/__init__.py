"""The subcommands of ``gswarm-tui``; each module has a function ``run`` that returns the exit status."""
