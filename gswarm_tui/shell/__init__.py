"""Asking a recording line by line in a terminal: history, completion, commands."""
