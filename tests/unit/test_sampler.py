"""Tests of the sampler's deadlines, on fake clocks."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gswarm_agent.frame import Frame, GpuFacts, GpuLink, HostFacts
from gswarm_agent.probes.base import TickSamples
from gswarm_agent.sampler import Sampler, Schedule, SystemWatch

SECOND = 1_000_000_000
WALL_AT_ZERO = 1_700_000_000 * SECOND


class FakeWatch(SystemWatch):
    """Clocks that move only with ``pass_s``."""

    def __init__(self, monotonic_s: float = 0.0) -> None:
        self.monotonic = round(monotonic_s * SECOND)
        self.wall_minus_monotonic = WALL_AT_ZERO

    def monotonic_ns(self) -> int:
        return self.monotonic

    def wall_ns(self) -> int:
        return self.monotonic + self.wall_minus_monotonic

    def pass_s(self, seconds: float) -> None:
        self.monotonic += round(seconds * SECOND)


class SlowProbe:
    """A probe whose ticks take a given time."""

    simulated = alone = patient = False

    def __init__(self, watch: FakeWatch, takes_s: dict[int, float] | None = None) -> None:
        self.watch = watch
        self.takes_s = takes_s or {}
        self.readings = 0
        self.fresh: list[int] = []
        self.groups: list[tuple[int, tuple[str, ...]]] = []

    def facts(self) -> tuple[HostFacts, tuple[GpuFacts, ...], dict[str, str]]:
        return HostFacts("n", "b"), (), {}

    def links(self) -> tuple[GpuLink, ...]:
        return ()

    def switch(self, groups: Sequence[str]) -> None:
        self.groups.append((self.readings, tuple(groups)))

    def read(self, now_ns: int, *, fresh: bool = False) -> TickSamples:
        assert now_ns == self.watch.monotonic
        self.readings += 1
        self.fresh += [self.readings] * fresh
        self.watch.pass_s(self.takes_s.get(self.readings, 0.001))
        return TickSamples((), None)

    def close(self) -> None:
        pass


def frames(
    count: int, *, watch: FakeWatch, interval_ms: int = 1000, takes_s: dict[int, float] | None = None
) -> list[Frame]:
    """Return the frames of a sampler whose waits are exact."""
    sampler = Sampler(SlowProbe(watch, takes_s), interval_ms, watch)
    return [next_frame(sampler, watch) for _ in range(count)]


def next_frame(sampler: Sampler, watch: FakeWatch) -> Frame:
    watch.pass_s(max(0, sampler.due - watch.monotonic_ns()) / SECOND)
    return sampler.take()


def times(found: list[Frame]) -> list[float]:
    return [(frame.ts_ns - WALL_AT_ZERO) / SECOND for frame in found]


def test_the_first_frame_is_immediate_and_the_others_are_on_whole_seconds() -> None:
    found = frames(4, watch=FakeWatch(10.3))
    assert times(found) == pytest.approx([10.3, 11, 12, 13])
    assert [frame.seq for frame in found] == [1, 2, 3, 4]
    assert all(frame.late_ms == frame.missed == 0 for frame in found)


def test_the_second_frame_is_never_too_close_for_a_rate() -> None:
    assert times(frames(3, watch=FakeWatch(10.9))) == pytest.approx([10.9, 12, 13])


def test_ten_frames_a_second_do_not_drift() -> None:
    found = times(frames(601, watch=FakeWatch(5.0), interval_ms=100, takes_s=dict.fromkeys(range(700), 0.03)))
    assert found == pytest.approx([5 + n / 10 for n in range(601)])


def test_an_overrun_makes_the_next_frame_late_but_not_missed() -> None:
    found = frames(4, watch=FakeWatch(1), takes_s={2: 1.25})
    assert times(found) == pytest.approx([1, 2, 3.25, 4])
    assert [frame.late_ms for frame in found] == pytest.approx([0, 0, 250, 0])
    assert [frame.missed for frame in found] == [0, 0, 0, 0]


def test_missed_deadlines_are_counted_and_not_made_up_for() -> None:
    found = frames(4, watch=FakeWatch(1), takes_s={2: 3.5})
    assert times(found) == pytest.approx([1, 2, 5.5, 6])
    assert [frame.missed for frame in found] == [0, 0, 2, 0]
    assert found[2].late_ms == pytest.approx(500)


def test_the_interval_changes_while_it_runs() -> None:
    watch = FakeWatch(1)
    sampler = Sampler(SlowProbe(watch), 1000, watch)
    found = [next_frame(sampler, watch) for _ in range(3)]
    watch.pass_s(0.52)
    sampler.set_interval(250)
    found += [next_frame(sampler, watch) for _ in range(3)]
    assert times(found) == pytest.approx([1, 2, 3, 3.75, 4, 4.25])
    assert [frame.gauge_ms for frame in found] == [1500, 1500, 1500, 1500, 375, 375]


@pytest.mark.parametrize(("requested", "interval_ms"), [(1, 100), (99, 100), (250, 250), (10**9, 60_000)])
def test_intervals_are_clamped(requested: int, interval_ms: int) -> None:
    assert Schedule(requested, 0).interval_ms == interval_ms


def test_a_step_of_the_wall_clock_neither_floods_nor_stops_the_samples() -> None:
    watch = FakeWatch(1)
    schedule = Schedule(1000, watch.monotonic)
    gaps = []
    for step in (0, -7200, 3600.3, -0.7, 0):
        watch.wall_minus_monotonic += round(step * SECOND)
        before = schedule.due
        assert schedule.serve(before, before + watch.wall_minus_monotonic) == (0, 0)
        gaps.append((schedule.due - before) / SECOND)
    assert all(0.5 <= gap <= 1.5 for gap in gaps)


@given(
    interval_ms=st.integers(100, 60_000),
    began=st.integers(0, 10**18),
    wall=st.integers(10**18, 2 * 10**18),
    delays=st.lists(st.integers(0, 200 * SECOND), min_size=1, max_size=30),
)
def test_deadlines_only_move_forward_onto_whole_intervals(
    interval_ms: int, began: int, wall: int, delays: list[int]
) -> None:
    schedule = Schedule(interval_ms, began)
    interval = interval_ms * 1_000_000
    now = began
    served_before = None
    for delay in delays:
        now = max(now, schedule.due) + delay
        due = schedule.due
        late_ms, missed = schedule.serve(now, now + wall)
        served = due + missed * interval
        assert served <= now < served + interval
        assert late_ms == pytest.approx((now - served) / 1e6)
        assert (schedule.due + wall) % interval == 0
        assert schedule.due > served
        assert served_before is None or served > served_before
        served_before = served


def test_wall_clock_of_a_life_ignores_steps_of_the_machines_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    before = time.time_ns()
    watch = SystemWatch()
    assert before <= watch.wall_ns() + 1_000_000
    monkeypatch.setattr(time, "time_ns", lambda: before - 3600 * 10**9)
    first, second = watch.wall_ns(), watch.wall_ns()
    assert before - 1_000_000 <= first <= second
    assert SystemWatch().wall_ns() < before


def test_metric_groups_are_switched_between_two_readings() -> None:
    watch = FakeWatch()
    probe = SlowProbe(watch)
    sampler = Sampler(probe, 1000, watch)
    sampler.take()
    sampler.set_metrics(("core", "host"))
    sampler.take()
    sampler.take()
    assert probe.groups == [(1, ("core", "host"))]


def test_energy_is_requested_of_the_first_reading_and_of_the_one_after_each_request() -> None:
    probe = SlowProbe(watch := FakeWatch())
    sampler = Sampler(probe, 1000, watch)
    sampler.take()
    sampler.take()
    sampler.energy_requested = True
    sampler.take()
    sampler.take()
    assert probe.fresh == [1, 3]
