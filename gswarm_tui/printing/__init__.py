"""Output of results in terminals and files."""
