"""Rules over samples that yield findings, and the ledger of GPU-hours."""
