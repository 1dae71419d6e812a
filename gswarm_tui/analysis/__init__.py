"""Analysis of recordings: periods, summaries and comparisons."""
