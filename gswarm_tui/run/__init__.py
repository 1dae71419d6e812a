"""A run of the head: built from options, lived, resumed and ended."""
