"""Textual's App with other output to the terminal, signal handling and order of keys."""

from __future__ import annotations

from rich.console import RenderableType
from textual.app import App
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Event, Key, Paste
from textual.screen import Screen

from gswarm_tui.tui.textual_internals import driver
from gswarm_tui.tui.textual_internals.compositor import TerminalCells
from gswarm_tui.tui.textual_internals.key_queue import KeyQueue


class TerminalApp(App[str], inherit_bindings=False):
    """App that writes only changed cells, handles keys one by one and survives suspension."""

    def __init__(self) -> None:
        super().__init__()
        self._written_cells = TerminalCells()
        self._key_queue = KeyQueue(self, super().on_event)

    def get_driver_class(self) -> type[Driver]:
        """Return a driver that outlives its terminal in the place of Textual's own."""
        usual = super().get_driver_class()
        return driver.DetachableDriver if usual is LinuxDriver else usual

    def on_mount(self) -> None:
        """Handle SIGTSTP and SIGCONT, and redraw after them."""
        self.app_resume_signal.subscribe(self, lambda _: self.action_redraw())
        driver.handle_stop_and_continue(self._driver)

    def on_unmount(self) -> None:
        """Leave SIGTSTP and SIGCONT to the system."""
        driver.leave_stop_and_continue(self._driver)

    async def on_event(self, event: Event) -> None:
        """Queue keys and pasted text; handle everything else at once."""
        if isinstance(event, (Key, Paste)) and not event.is_forwarded:
            await self._key_queue.take(event)
        else:
            await super().on_event(event)

    def on_resize(self) -> None:
        """Redraw everything: terminals move their text when they are resized, even back to the old size."""
        self.action_redraw()

    def action_redraw(self) -> None:
        """Write every cell again, whatever the terminal shows."""
        self._written_cells.forget()
        if self.screen_stack:
            self.screen.refresh()

    def _display(self, screen: Screen[object], renderable: RenderableType | None) -> None:
        """Write what Textual drew, as far as the terminal doesn't show it already."""
        super()._display(screen, self._written_cells.changes(renderable))
