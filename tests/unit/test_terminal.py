"""The terminal that tests look at."""

from __future__ import annotations

import sys

import pytest

from tests.terminal import EndedError, InTerminal


def test_who_waits_for_a_text_of_a_program_that_ended_is_told_at_once_what_it_wrote() -> None:
    command = [sys.executable, "-c", "print('good bye'); raise SystemExit(3)"]
    with InTerminal(command, size=(40, 5)) as running:
        running.wait_for("good bye")
        with pytest.raises(EndedError, match=r"(?s)'hello' .* ended with 3; the screen:\ngood bye"):
            running.wait_for("hello", 3600.0)
