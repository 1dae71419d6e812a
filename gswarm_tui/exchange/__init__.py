"""Export and import of recordings in the formats of other tools: CSV, and JSON of gswarm-profiler."""
