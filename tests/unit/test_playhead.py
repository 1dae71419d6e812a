"""The playhead: a position that moves with a clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gswarm_tui.playback.player import SPEEDS, Playhead


class PlayheadClock:
    """Clock that moves only when a test moves it."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def head(at: float = 1000.0) -> tuple[Playhead, PlayheadClock]:
    clock = PlayheadClock()
    return Playhead(1000.0, 1060.0, at, clock), clock


def test_playhead_moves_at_its_speed() -> None:
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


def test_playhead_stays_in_the_recording_and_restarts_after_the_end() -> None:
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


@given(
    st.lists(
        st.one_of(
            st.sampled_from(["play", "pause", "faster", "slower"]), st.floats(-1e9, 1e9), st.floats(0, 1e4)
        )
    )
)
def test_any_keys_keep_the_playhead_in_the_recording(keys: list[str | float]) -> None:
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
