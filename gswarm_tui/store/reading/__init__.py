"""Reading a recording back: its events, and the fleet at a past time."""
