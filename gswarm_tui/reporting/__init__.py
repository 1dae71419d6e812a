"""Reports on sessions: each is one self-contained HTML page without scripts."""
