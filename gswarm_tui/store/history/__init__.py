"""A recording read back: the fleet at a past time and the events since."""
