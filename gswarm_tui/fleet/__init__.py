"""State of the fleet: nodes, history, filter, sessions. Does no I/O; callers pass the time."""
