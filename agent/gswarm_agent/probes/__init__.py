"""Probes: each measures one part of this node and returns plain values, None where one is missing."""
