"""Fault suite: injects faults into a real cluster and counts the frames that they cost."""
