"""Asks the job itself which rank is behind: step by step, on request only."""
