"""Nodes of jobs under schedulers other than Slurm, and host files."""
