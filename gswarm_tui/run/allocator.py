"""How DuckDB gets its memory."""

from collections.abc import MutableMapping

_OPTIONS = "narenas:1,dirty_decay_ms:200,muzzy_decay_ms:0,background_thread:true"


def share_one_arena(environ: MutableMapping[str, str]) -> None:
    """Have DuckDB give back what it freed, in a process that stays for days; before DuckDB is loaded.

    By itself its allocator, jemalloc, has an arena for each thread, and one whose thread is idle never gives
    anything back. One that all share does so at the next commit, but the threads of a query wait for each
    other in it: what ends soon is quicker without. A ``DUCKDB_JE_MALLOC_CONF`` of the user's own is left.
    """
    environ.setdefault("DUCKDB_JE_MALLOC_CONF", _OPTIONS)
