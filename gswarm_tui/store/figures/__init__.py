"""The definitions of figures: what lies in a window, whose GPUs count, busy, idle, energy."""
