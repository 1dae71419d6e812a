"""Attacks: what a neighbour, a hostile node or a careless command line could do, each with what stops it."""
