"""Recordings in DuckDB: writing, querying, reading back, importing and exporting."""
