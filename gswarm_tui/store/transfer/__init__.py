"""Exporting recordings as Parquet, and importing recordings."""
