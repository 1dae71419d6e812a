"""Textual's App with other output to the terminal, signal handling and order of keys."""

from __future__ import annotations

import asyncio
import shlex
import termios

from rich.console import RenderableType
from textual.app import App
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Event, Key, Paste
from textual.screen import Screen

from gswarm_tui.common.processes import run_command
from gswarm_tui.tui.textual_internals import driver
from gswarm_tui.tui.textual_internals.compositor import TerminalCells
from gswarm_tui.tui.textual_internals.key_queue import KeyQueue


class TerminalApp(App[str], inherit_bindings=False):
    """App that writes only changed cells, handles keys one by one and survives suspension."""

    def __init__(self) -> None:
        super().__init__()
        self._command: asyncio.Task[str] | None = None
        self._written_cells = TerminalCells()
        self._key_queue = KeyQueue(self, super().on_event)

    @property
    def terminal_lent(self) -> bool:
        """Whether another command has the terminal."""
        return self._command is not None and not self._command.done()

    def get_driver_class(self) -> type[Driver]:
        """Return a driver that outlives its terminal in the place of Textual's own."""
        default = super().get_driver_class()
        return driver.DetachableDriver if default is LinuxDriver else default

    def on_mount(self) -> None:
        """Handle SIGTSTP and SIGCONT, and redraw after them."""
        self.app_resume_signal.subscribe(self, lambda _: self.action_redraw())
        driver.handle_stop_and_continue(self._driver)

    async def on_unmount(self) -> None:
        """Leave SIGTSTP and SIGCONT to the system, once a command has given the terminal back."""
        if self._command is not None:
            self._command.cancel()
            await asyncio.wait({self._command})
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

    async def run_in_place(self, *words: str) -> str:
        """Run a command of gswarm-tui in this app's terminal, while the app goes on unseen.

        Return why the command failed, empty if it didn't. Raises SuspendNotSupported.
        """
        # ⏎ may be pressed again before the command has the terminal.
        if self.terminal_lent:
            return ""
        with self.batch_update(), self.suspend():
            print(shlex.join(("gswarm-tui", *words)))
            self._command = asyncio.create_task(self._run(*words))
            return await asyncio.shield(self._command)

    async def _run(self, *words: str) -> str:
        settings = termios.tcgetattr(0)
        # Ctrl-C while the command starts would end this app, too, and with it perhaps the recording.
        termios.tcsetattr(0, termios.TCSANOW, [*settings[:3], settings[3] & ~termios.ISIG, *settings[4:]])
        try:
            return await run_command(*words, in_terminal=True)
        finally:
            termios.tcsetattr(0, termios.TCSANOW, settings)

    def action_redraw(self) -> None:
        """Write every cell again, whatever the terminal shows."""
        self._written_cells.forget()
        if self.screen_stack:
            self.screen.refresh()

    def _display(self, screen: Screen[object], renderable: RenderableType | None) -> None:
        """Write what Textual drew, as far as the terminal doesn't show it already."""
        super()._display(screen, self._written_cells.changes(renderable))
