"""The places of the app: fleet, node, GPU, sessions, events, help."""
