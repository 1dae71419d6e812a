"""Playback of a recording: position, speed, timeline, and the fleet at the position."""
