"""A run of the head: built from options, watched, resumed and ended."""
