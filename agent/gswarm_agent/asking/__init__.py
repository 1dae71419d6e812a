"""Steps of asking the job's own processes, on request only."""
