"""Benches: measure speed and memory, and print tables of figures and their goals."""
