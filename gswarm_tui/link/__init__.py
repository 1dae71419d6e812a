"""One node's connection: reconnecting, limits and the clock."""
