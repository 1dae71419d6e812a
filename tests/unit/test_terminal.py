"""The terminal emulator of the tests."""

from __future__ import annotations

import sys

import pytest

from tests.terminal import EndedError, InTerminal


def test_wait_for_text_fails_at_once_with_the_screen_if_the_program_ended() -> None:
    command = [sys.executable, "-c", "print('good bye'); raise SystemExit(3)"]
    with InTerminal(command, size=(40, 5)) as running:
        running.wait_for("good bye")
        with pytest.raises(EndedError, match=r"(?s)'hello' .* ended with 3; the screen:\ngood bye"):
            running.wait_for("hello", 3600.0)
