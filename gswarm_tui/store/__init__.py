"""The recording in DuckDB: schema, recorder, reader."""
