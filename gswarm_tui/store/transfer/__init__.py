"""Recordings in and out: Parquet datasets and imports."""
