"""Widgets of the screens. Everything live is drawn by line, never as a widget per cell."""
