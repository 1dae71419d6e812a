"""Many recordings as runs, and Dask."""
