"""Connections to nodes: a link for each, with backoff, limits and clock offset, and the hub of all links."""
