"""Pure knowledge about the fleet: state, history, filter, sessions. No I/O and no clock of its own."""
