"""A simulated user at one terminal, who presses keys and waits for words on the screen."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from textual.pilot import Pilot

from gswarm_tui.tui.viewer import Viewer
from tests.terminal import InTerminal
from tests.tui.conftest import screen_text

KEYS = {
    "⏎": "enter",
    "esc": "escape",
    "tab": "tab",
    "space": "space",
    "↓": "down",
    "→": "right",
    "^r": "ctrl+r",
    "F1": "f1",
}
"""Keys as the footer prints them; every other word of a step is typed letter by letter."""
LONGEST_S = 30.0
PAGE = 120
"""Rows of a command's terminal: a user scrolls back to what has left the screen."""


@dataclass(frozen=True)
class Step:
    """What a user did, and the seconds until the screen showed what matters."""

    does: str
    keys: str
    seconds: float


class Walker:
    """Takes the steps of one user in a terminal of one size.

    Args:
        size: Columns and rows.
        folder: Empty folder for recordings; also the home of commands.
        see: Called after each step with the step and what is seen: an app, or what a command printed.
    """

    def __init__(
        self,
        size: tuple[int, int],
        folder: Path,
        see: Callable[[Step, Viewer | str], None] | None = None,
    ) -> None:
        self.size = size
        self.folder = folder
        self.steps: list[Step] = []
        self._see = see
        self._app: Viewer | None = None
        self._pilot: Pilot[str] | None = None

    @asynccontextmanager
    async def at(self, app: Viewer) -> AsyncIterator[None]:
        """Sit in front of an app until the block ends."""
        app.animation_level = "none"
        async with app.run_test(size=self.size, notifications=True) as pilot:
            self._app, self._pilot = app, pilot
            yield

    async def step(
        self, does: str, keys: str = "", *, sees: tuple[str, ...] | str, gone: tuple[str, ...] | str = ()
    ) -> None:
        """Press keys, and wait until the screen shows all of ``sees`` and nothing of ``gone``.

        A line break on the screen counts as a space, since notices and sentences wrap.
        """
        assert self._app is not None
        assert self._pilot is not None
        app, pilot = self._app, self._pilot
        wanted, unwanted = _several(sees), _several(gone)
        began = time.perf_counter()
        for word in keys.split():
            await pilot.press(*([KEYS[word]] if word in KEYS else word))
        deadline = began + LONGEST_S
        while missing := _differences(_words(screen_text(app)), wanted, unwanted):
            if time.perf_counter() > deadline or not app.is_running:
                self._fail(does, keys, missing, screen_text(app))
            await pilot.pause(0.03)
        self._done(Step(does, keys, time.perf_counter() - began), app)

    async def leave(self, does: str, keys: str) -> None:
        """Press keys that quit the app, and wait until it has ended."""
        assert self._app is not None
        assert self._pilot is not None
        began = time.perf_counter()
        await self._pilot.press(*keys)
        async with asyncio.timeout(LONGEST_S):
            while self._app.is_running:
                await asyncio.sleep(0.01)
        self._done(Step(does, keys, time.perf_counter() - began), self._app)

    def command(
        self,
        does: str,
        *words: str,
        sees: tuple[str, ...] | str,
        status: int = 0,
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Run ``gswarm-tui`` with these words in a terminal of this width, and return what it printed."""
        folder = str(self.folder)
        environ = {"HOME": folder, "XDG_STATE_HOME": folder, "XDG_RUNTIME_DIR": folder, "TZ": "UTC"}
        program = [sys.executable, "-m", "gswarm_tui", *words]
        began = time.perf_counter()
        size = (self.size[0], PAGE)
        with InTerminal(program, size=size, env=environ | dict(env or {}), folder=self.folder) as terminal:
            ended = terminal.process.wait(LONGEST_S)
            terminal.end()
            printed = terminal.screen().rstrip()
        seconds = time.perf_counter() - began
        keys = f"gswarm-tui {' '.join(words)}"
        missing = _differences(_words(printed), _several(sees), ())
        if ended != status:
            missing.append(f"it ended with status {ended} instead of {status}")
        if missing:
            self._fail(does, keys, missing, printed)
        self._done(Step(does, keys, seconds), printed)
        return printed

    def _done(self, step: Step, seen: Viewer | str) -> None:
        self.steps.append(step)
        if self._see is not None:
            self._see(step, seen)

    def _fail(self, does: str, keys: str, missing: list[str], shown: str) -> None:
        columns, rows = self.size
        problem = f"{does} ({keys or 'no key'}) at {columns}×{rows}: {'; '.join(missing)}"
        raise AssertionError(f"{problem}:\n{shown}")


def _several(words: tuple[str, ...] | str) -> tuple[str, ...]:
    return (words,) if isinstance(words, str) else words


def _words(shown: str) -> str:
    """Return a screen as one line; a frame's sides at a line break are left out."""
    return " ".join(shown.replace("│", " ").split())


def _differences(shown: str, wanted: tuple[str, ...], unwanted: tuple[str, ...]) -> list[str]:
    return [
        *(f"{words!r} is missing" for words in wanted if words not in shown),
        *(f"{words!r} is still there" for words in unwanted if words in shown),
    ]
