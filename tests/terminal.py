"""Terminal emulator for tests, which search the resulting screen instead of the output."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pyte

LOOK_S = 0.25
"""Seconds between checks whether a program that writes nothing has ended."""
PATIENCE_S = 60.0
"""Seconds that a busy machine may take for what must happen."""
LOOKS_S = 0.05, 0.5
"""Least and most seconds between two looks at something awaited."""
READ_S = 5.0
"""Longest time of reading what a program wrote that has ended, if another one keeps its terminal open."""


def pause(began: float) -> None:
    """Sleep until the next look at what is awaited since a monotonic time; each look may cost a process."""
    least_s, most_s = LOOKS_S
    time.sleep(min(most_s, least_s + (time.monotonic() - began) / 20))


class EndedError(Exception):
    """Raised if the program ended before it showed the awaited text."""


class Screen:
    """The screen that results from all output so far."""

    def __init__(self, columns: int, rows: int) -> None:
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._lines = [""] * rows

    def write(self, data: bytes | str) -> None:
        """Interpret a program's output; a character may arrive in several pieces."""
        self._stream.feed(data.encode() if isinstance(data, str) else data)

    def text(self) -> str:
        """The lines of the screen, without colours."""
        for y in self._screen.dirty:
            self._lines[y] = "".join(cell.data for cell in self.line(y)).rstrip()
        self._screen.dirty.clear()
        return "\n".join(self._lines)

    def line(self, y: int) -> list[pyte.screens.Char]:
        """Return the cells of a line; "" is the second cell of a wide character."""
        return [self._screen.buffer[y][x] for x in range(self._screen.columns)]

    def modes(self) -> set[int]:
        """The modes that are on, in the numbers of pyte: the cursor, wrapping, the mouse, pasting …"""
        return set(self._screen.mode)

    def pen(self) -> pyte.screens.Char:
        """The style of the next character."""
        return self._screen.cursor.attrs


class InTerminal:
    """A program in a terminal of its own; a context that ends it.

    ``writes`` holds the time and the size of each piece that it wrote, ``written`` how many bytes they are;
    ``first_settings`` the terminal's settings before it started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        size: tuple[int, int] = (200, 60),
        env: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        columns, rows = size
        self.writes: list[tuple[float, int]] = []
        self.written = 0
        self._screen = Screen(columns, rows)
        self._undrawn: deque[tuple[float, bytes]] = deque()
        self._drawn_at = 0.0
        self._changed = threading.Condition()
        self._terminal, its_end = pty.openpty()
        fcntl.ioctl(its_end, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.first_settings = self.settings()
        environ = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **(env or {})}
        self.began = time.monotonic()
        try:
            self.process = subprocess.Popen(
                command, stdin=its_end, stdout=its_end, stderr=its_end, env=environ, cwd=folder,
                start_new_session=True,
            )  # fmt: skip
        except BaseException:
            os.close(self._terminal)
            raise
        finally:
            os.close(its_end)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def pid(self) -> int:
        """The process that draws the screen."""
        return self.process.pid

    def _read(self) -> None:
        with suppress(OSError):  # the terminal's other end was closed
            while data := os.read(self._terminal, 1 << 20):
                now = time.monotonic()
                with self._changed:
                    self.writes.append((now, len(data)))
                    self.written += len(data)
                    self._undrawn.append((now, data))
                    self._changed.notify_all()

    def _draw(self) -> bool:
        """Add the next piece of output to the screen; return whether there was one."""
        if not self._undrawn:
            return False
        self._drawn_at, data = self._undrawn.popleft()
        self._screen.write(data)
        return True

    def press(self, keys: str | bytes) -> None:
        """Type text or keys, or send bytes as they are."""
        os.write(self._terminal, keys if isinstance(keys, bytes) else keys.encode())

    def screen(self) -> str:
        """The present screen."""
        while self._draw():
            pass
        return self._screen.text()

    def settings(self) -> tuple[object, ...]:
        """Return the termios settings and the modes of the screen."""
        self.screen()
        return (*termios.tcgetattr(self._terminal), self._screen.modes())

    def wait_for(self, text: str, timeout_s: float = PATIENCE_S) -> float:
        """Wait until the screen shows a text; return the monotonic time at which it appeared.

        Raises TimeoutError, or EndedError where the program ended meanwhile.
        """
        deadline = time.monotonic() + timeout_s
        while text not in self._screen.text():
            if self._draw():
                continue
            ended = self.process.poll()
            with self._changed:
                if self._changed.wait_for(lambda: self._undrawn, min(LOOK_S, deadline - time.monotonic())):
                    continue
            if ended is not None and self._reader.is_alive():
                self._reader.join(READ_S)
                if self._undrawn:
                    continue
            shown = f"the screen:\n{self._screen.text()}"
            if ended is not None:
                raise EndedError(f"{text!r} did not appear, and the program ended with {ended}; {shown}")
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{text!r} did not appear; {shown}")
        return self._drawn_at

    def wait_for_writing(self, since: int, timeout_s: float = PATIENCE_S) -> float:
        """Wait until the program has written more than this many bytes; return the time of that."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.written > since, timeout_s):
                raise TimeoutError("nothing was written")
            return self.writes[-1][0]

    def written_bytes(self, since: float, until: float) -> int:
        """Return how many bytes the program wrote between two monotonic times."""
        return sum(size for at, size in self.writes if since <= at < until)

    def exit_status(self) -> int:
        """Wait until the program has ended and all its output is read; return its exit status."""
        status = self.process.wait(PATIENCE_S)
        self._reader.join(READ_S)
        return status

    def kill(self) -> None:
        """Kill the program."""
        self.process.kill()
        self.end()

    def end(self, timeout_s: float = PATIENCE_S) -> int:
        """End the program, by force if needed; return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)  # also its stopped children
            self.process.wait()
        if self._terminal >= 0:
            self._reader.join(READ_S)
            os.close(self._terminal)
            self._terminal = -1
        return self.process.returncode
