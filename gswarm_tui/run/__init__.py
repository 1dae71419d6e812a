"""A run of the recorder: built from options, watched, resumed and ended."""
