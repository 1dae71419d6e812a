"""A session as a picture: what it shows, asked of a recording, and how it is drawn. Matplotlib's home."""

from __future__ import annotations

import logging

# Where a home folder can't be written, matplotlib says so and goes on in a temporary one: nobody has to know.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
