"""The playhead: a position that moves with a clock, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gswarm_tui.playback.playhead import SPEEDS, Playhead


class FakeClock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def head(at: float = 1000.0) -> tuple[Playhead, FakeClock]:
    clock = FakeClock()
    return Playhead(1000.0, 1060.0, at, clock), clock


def test_it_stays_where_it_is_until_it_plays() -> None:
    playhead, clock = head()
    clock.seconds += 10
    assert playhead.at == 1000
    playhead.play()
    clock.seconds += 10
    assert playhead.at == 1010
    playhead.pause()
    clock.seconds += 10
    assert playhead.at == 1010


def test_it_moves_as_fast_as_it_is_told_from_where_it_is() -> None:
    playhead, clock = head()
    playhead.play()
    clock.seconds += 2
    playhead.change_speed(1)
    clock.seconds += 2
    assert playhead.at == 1006
    for _ in range(len(SPEEDS)):
        playhead.change_speed(1)
    assert playhead.speed == 100
    for _ in range(len(SPEEDS)):
        playhead.change_speed(-1)
    assert playhead.speed == 0.25
    clock.seconds += 4
    assert playhead.at == 1007


def test_it_never_leaves_the_recording_and_begins_anew_after_the_end() -> None:
    playhead, clock = head(at=10)
    assert playhead.at == 1000
    playhead.play()
    clock.seconds += 1000
    assert playhead.at == 1060
    assert playhead.ended
    playhead.pause()
    playhead.play()
    assert playhead.at == 1000
    playhead.move_to(5000)
    assert playhead.at == 1060


def test_a_recording_that_grows_lets_it_go_on() -> None:
    playhead, clock = head(at=1060)
    playhead.end = 1070
    playhead.play()
    clock.seconds += 4
    assert playhead.at == 1064


@given(
    st.lists(
        st.one_of(
            st.sampled_from(["play", "pause", "faster", "slower"]), st.floats(-1e9, 1e9), st.floats(0, 1e4)
        )
    )
)
def test_whatever_is_pressed_it_is_within_the_recording(keys: list[str | float]) -> None:
    playhead, clock = head()
    for key in keys:
        match key:
            case "play":
                playhead.play()
            case "pause":
                playhead.pause()
            case "faster" | "slower":
                playhead.change_speed(1 if key == "faster" else -1)
            case float() if key >= 0:
                clock.seconds += key
            case _:
                playhead.move_to(float(key))
        assert 1000 <= playhead.at <= 1060
        assert playhead.speed in SPEEDS


@pytest.mark.parametrize("end", [1000.0, 900.0])
def test_an_empty_recording_is_a_moment(end: float) -> None:
    playhead = Playhead(1000.0, end, 1000.0, FakeClock())
    playhead.play()
    assert playhead.at == 1000
    assert playhead.ended
