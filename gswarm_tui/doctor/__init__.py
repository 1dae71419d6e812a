"""What ``gswarm-tui doctor`` finds: reports of nodes and of this machine, rules over them, their text."""
