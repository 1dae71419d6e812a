"""Read-only queries on a recording, finished or running."""
