"""Textual's TextArea with a hook for keys that it would otherwise take itself."""

from __future__ import annotations

from textual import events
from textual.widgets import TextArea


class HookedTextArea(TextArea):
    """TextArea that offers each key to ``take_key`` first."""

    def take_key(self, key: str) -> bool:
        """Handle a key; False leaves it to Textual."""
        del key
        return False

    async def _on_key(self, event: events.Key) -> None:
        if self.take_key(event.key):
            event.stop()
            event.prevent_default()
        else:
            await super()._on_key(event)
