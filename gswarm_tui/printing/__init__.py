"""How answers look in a terminal and in files."""
