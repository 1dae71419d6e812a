"""A running recorder's private socket: its state, queries, intents, and streams to viewers."""
