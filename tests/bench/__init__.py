"""Measurements: how quick and how small things are, as tables of figure, goal and what was measured."""
