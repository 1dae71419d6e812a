"""Trials: the same command run under several placements, to find the right number of nodes and GPUs."""
