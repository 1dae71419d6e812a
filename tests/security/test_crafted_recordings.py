"""Recordings with values that no recorder writes: every command ends with a result or a sentence."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.security.crafted import (
    FILE,
    QUICK,
    SECONDS,
    Crafted,
    Workshop,
    failure,
    is_promised,
    limited_memory,
    some_recordings,
    words,
)

CASES = list(some_recordings())
READ = itertools.count()


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    """Return the workshop that makes the recordings, in the working folder."""
    folder = tmp_path_factory.mktemp("crafted")
    with contextlib.chdir(folder), contextlib.closing(Workshop(folder)) as made, limited_memory():
        yield made


def test_enough_recordings_are_crafted() -> None:
    assert len(CASES) >= 270


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize(
    ("case", "command"),
    [
        pytest.param(case, "sessions" if case.refusal else QUICK[next(READ) % len(QUICK)], id=case.name)
        for case in CASES
    ],
)
def test_a_crafted_recording_ends_in_an_answer_or_a_sentence(
    workshop: Workshop, case: Crafted, command: str
) -> None:
    """A refused file is only opened, as all commands open alike; the commands read the others in turn."""
    workshop.make(case, FILE)
    assert failure(case, command) == ""


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("sessions.started_at 'infinity' in all rows", "summary"),
        ("nodes with too many rows", "plot"),
        ("gpu_samples with values 1 of 4 in one row", "summary"),
        ("two nodes of one name", "report"),
    ],
)
def test_a_whole_command_on_a_crafted_recording_prints_no_traceback(
    workshop: Workshop, name: str, command: str
) -> None:
    (case,) = (case for case in CASES if case.name == name)
    workshop.make(case, FILE)
    line = [sys.executable, "-m", "gswarm_tui", *words(command)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert is_promised(case, done.returncode, done.stderr)


@pytest.mark.timeout(SECONDS)
def test_replay_of_sessions_of_two_centuries_ends(workshop: Workshop) -> None:
    (case,) = (case for case in CASES if case.name == "60 sessions of two centuries")
    workshop.make(case, FILE)
    assert failure(case, "replay") == ""
