"""What a recording says afterwards: summaries, comparisons, plots, reports, exports."""
