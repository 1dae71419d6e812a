"""Writing a recording: the recorder and its DuckDB file."""
