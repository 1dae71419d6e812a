"""The terminal screens, the only home of Textual."""
