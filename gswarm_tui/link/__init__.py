"""One node's connection: link with backoff, limits, and clock offset."""
