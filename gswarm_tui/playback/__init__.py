"""Playing a recording: where in it, how fast, and the fleet at that time. Knows no file and no screen."""
