"""Reports: one self-contained HTML page about a session, without scripts."""
