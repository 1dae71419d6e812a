"""Slurm: host lists, jobs and their GPUs."""
