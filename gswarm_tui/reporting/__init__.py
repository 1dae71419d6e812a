"""A session as one page to send on: plain HTML without scripts, which needs nothing from elsewhere."""
