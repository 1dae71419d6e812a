"""The recording in DuckDB: schema, recorder, reader."""

import os

# DuckDB's allocator reads this once, when it is loaded. By itself it has an arena for each thread, and one
# whose thread is idle never gives back what was freed; one that all share does so at the next commit.
os.environ.setdefault("DUCKDB_JE_MALLOC_CONF", "narenas:1,dirty_decay_ms:200")
