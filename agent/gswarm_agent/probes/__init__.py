"""Probes: each reads one kind of thing on this node and answers plain values, None where there is none."""
