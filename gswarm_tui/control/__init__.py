"""A running head's private socket: its state, queries, intents, and streams to viewers."""
