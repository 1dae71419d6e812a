"""A session as a picture: what it shows, asked of a recording, and how it is drawn. Matplotlib's home."""
