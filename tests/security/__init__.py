"""Attacks by neighbours, hostile nodes, files and queries, which the program withstands."""
