"""A real terminal for end-to-end tests: a private tmux server that tests type into and read."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.cluster.running import words_of
from tests.recorders import kill_recorder
from tests.terminal import PATIENCE_S, Screen, pause

_READ_S = 2.0
_OPTIONS = {
    "remain-on-exit": "on",
    "remain-on-exit-format": "",  # the last screen stays as it is
    "status": "off",
    "default-terminal": "tmux-256color",
    "terminal-features": "*:RGB",
    "escape-time": "0",  # Escape is a key on its own at once
}
_SETTINGS = [word for name, value in _OPTIONS.items() for word in ("set-option", "-g", name, value, ";")]


class Terminal:
    """One command in a terminal of its own, at the calling thread's node; a context that closes it.

    Args:
        command: an argument list, or a bash command.
        env: the command's whole environment, but for TERM, which tmux sets.
        size: columns and rows.
        folder: the working folder, by default this process's.
    """

    def __init__(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str],
        size: tuple[int, int] = (120, 40),
        folder: Path | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gswarm-terminal-")
        self._tmux_words = ["tmux", "-u", "-S", str(Path(self._folder.name) / "socket"), "-f", "/dev/null"]
        columns, rows = map(str, size)
        place = ["-x", columns, "-y", rows, "-c", str(folder or Path.cwd())]
        try:
            self._tmux(*_SETTINGS, "new-session", "-d", *place, *words_of(command), env=env)
            self._server = int(self._ask("#{pid}"))
            self.pid = int(self._ask("#{pane_pid}"))
        except BaseException:
            self._folder.cleanup()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def type(self, text: str, *, enter: bool = True) -> None:
        """Type a text, and Enter after it unless ``enter`` is off."""
        # tmux takes a semicolon at the end of a word for the end of its command.
        self._tmux("send-keys", "-l", "--", text[:-1] + "\\;" if text.endswith(";") else text)
        if enter:
            self.press("Enter")

    def press(self, *keys: str) -> None:
        """Press keys by tmux's names: "q", "Enter", "Escape", "C-c", "M-x", "Left", "F1", "Tab", …"""
        self._tmux("send-keys", "--", *keys)

    def screen(self, *, colours: bool = False) -> str:
        """Return the screen's text; with ``colours`` including escape sequences."""
        return self._tmux("capture-pane", "-p", *(["-e"] if colours else []))

    def lines(self) -> list[str]:
        """Return the lines as written, without the terminal's line breaks."""
        return self._tmux("capture-pane", "-p", "-J").splitlines()

    def drawn(self) -> Screen:
        """Return the screen with the colours of its cells."""
        columns, rows = self._ask("#{pane_width} #{pane_height}").split()
        screen = Screen(int(columns), int(rows))
        screen.write("\r\n".join(self.screen(colours=True).splitlines()))
        return screen

    def wait_for(self, wanted: str | re.Pattern[str], timeout: float = PATIENCE_S) -> str:
        """Wait until the screen shows the text or matches the pattern; return that screen.

        AssertionError with the screen when it doesn't within `timeout` seconds, or the command ends before.
        """
        return self._wait(lambda screen: _shows(screen, wanted), f"{_name(wanted)} did not appear", timeout)

    def wait_gone(self, unwanted: str | re.Pattern[str], timeout: float = PATIENCE_S) -> str:
        """Wait until the screen no longer shows the text or matches the pattern; return that screen."""
        failure = f"{_name(unwanted)} did not go"
        return self._wait(lambda screen: not _shows(screen, unwanted), failure, timeout)

    def exit_status(self, timeout: float = PATIENCE_S) -> int:
        """Wait for the command's end; return its exit status, or 128 + its signal's number."""
        began = time.monotonic()
        while not (status := self._status()):
            if time.monotonic() > began + timeout:
                raise AssertionError(f"no end within {timeout:g} s; the screen:\n{self.screen()}")
            pause(began)
        return int(status)

    def kill(self, db: Path) -> int:
        """Kill the recorder of a file and the command, which is the screen; return its status."""
        kill_recorder(db)
        os.kill(self.pid, signal.SIGKILL)
        return self.exit_status()

    def wake(self) -> None:
        """Continue what has the foreground, if it is stopped."""
        foreground = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[5]
        os.killpg(int(foreground), signal.SIGCONT)

    def ended(self) -> bool:
        """Return whether the command has ended."""
        return self._status() != ""

    def _status(self) -> str:
        dead, status, signal_number = self._ask("#{pane_dead},#{pane_dead_status},#{pane_dead_signal}").split(
            ","
        )
        if dead == "1" and not status and not signal_number:
            # tmux can miss the end of a command that is quick to end: it then waits for the next SIGCHLD.
            os.kill(self._server, signal.SIGCHLD)
        return str(128 + int(signal_number)) if signal_number else status

    def resize(self, columns: int, rows: int) -> None:
        """Resize the terminal."""
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def close(self) -> None:
        """Close the terminal; processes in it get SIGHUP."""
        if not self._folder.name or not Path(self._folder.name).exists():
            return
        try:
            server = os.pidfd_open(self._server)
        except ProcessLookupError:
            pass
        else:
            subprocess.run(
                [*self._tmux_words, "kill-server"], check=False, capture_output=True, timeout=PATIENCE_S
            )
            select.select([server], [], [], PATIENCE_S)
            os.close(server)
        self._folder.cleanup()

    def _wait(self, condition: Callable[[str], bool], failure: str, timeout: float) -> str:
        began = time.monotonic()
        deadline, ended = began + timeout, False
        while True:
            if not ended and self.ended():
                # tmux may know of the end before it has read what was written last.
                ended, deadline = True, time.monotonic() + _READ_S
            over = time.monotonic() > deadline or (ended and self._ask("#{pane_dead}") == "1")
            screen = self.screen()
            if condition(screen):
                return screen
            if over:
                why = "before the command ended" if ended else f"within {timeout:g} s"
                raise AssertionError(f"{failure} {why}; the screen:\n{screen}")
            pause(began)

    def _ask(self, format_: str) -> str:
        return self._tmux("display-message", "-p", format_).strip()

    def _tmux(self, *words: str, env: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(
            [*self._tmux_words, *words],
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env=env,
        )
        if done.returncode != 0:
            raise AssertionError(f"tmux {words[0]}: {done.stderr.strip()}")
        return done.stdout


def _shows(screen: str, wanted: str | re.Pattern[str]) -> bool:
    return wanted in screen if isinstance(wanted, str) else wanted.search(screen) is not None


def _name(wanted: str | re.Pattern[str]) -> str:
    return repr(wanted if isinstance(wanted, str) else wanted.pattern)
