"""Timeline: jump targets along a recording."""

from __future__ import annotations

from gswarm_agent.frame import ERROR, INFO, WARNING
from gswarm_tui.playback.timeline import MARK, JumpTarget, ReplayTimeline, SessionRange

TRACK = ReplayTimeline(
    [SessionRange("train", 100, 160), SessionRange("later", 150, None)],
    [
        JumpTarget(130, ERROR, "n1 lost"),
        JumpTarget(110, WARNING, "n1:0 throttled"),
        JumpTarget(130, MARK, "epoch 1"),
    ],
)


def test_targets_are_found_forward_and_back() -> None:
    seen, at = [], 0.0
    while (stop := TRACK.after(at)) is not None:
        at = stop.at
        seen.append(stop.description)
    assert seen == ["train begins", "n1:0 throttled", "n1 lost", "later begins", "train ends"]
    back = []
    while (stop := TRACK.before(at)) is not None:
        at = stop.at
        back.append(at)
    assert back == [150, 130, 110, 100]


def test_running_session_has_no_end_target() -> None:
    assert [stop.description for stop in TRACK.between(140, 1e9)] == ["later begins", "train ends"]


def test_session_bounds_are_info_targets() -> None:
    assert {stop.kind for stop in TRACK.targets if "begins" in stop.description} == {INFO}
