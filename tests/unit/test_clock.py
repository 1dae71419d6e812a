"""The head's clock ignores changes of the machine's, and sample times follow it in order."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gswarm_agent.frame import ClockExchange
from gswarm_tui.link.clock import NodeClock, steady_wall_clock

T0 = 1_800_000_000


@pytest.mark.parametrize("step_s", [-86_400.0, 86_400.0])
def test_head_clock_ignores_the_machines_clock(monkeypatch: pytest.MonkeyPatch, step_s: float) -> None:
    now = steady_wall_clock()
    before, true_time = now(), time.time
    monkeypatch.setattr(time, "time", lambda: true_time() + step_s)
    assert 0 <= now() - before < 3600


def timestamp(clock: NodeClock, at_s: float, offset_s: float, late_ms: float = 0.0, life: str = "a") -> float:
    """Return the stored time (seconds after T0) of a sample at ``at_s``, with a clock ``offset_s`` ahead."""
    clock.resume(life, offset_s, 0.0, None)
    return clock.timestamp(life, round((T0 + at_s) * 1e9), late_ms)[0] - T0


def test_punctual_sample_gets_its_deadline_and_a_late_one_its_own_time() -> None:
    assert timestamp(NodeClock(), 0.00031, 0, late_ms=0.31) == 0
    assert timestamp(NodeClock(), 0.0049, 0, late_ms=4.9) == 0
    assert timestamp(NodeClock(), 0.4003, 0, late_ms=400.3) == pytest.approx(0.4, abs=1e-6)


def test_higher_offset_is_slewed_and_a_lower_one_used_at_once() -> None:
    """At 10 Hz, a shorter round trip raises the offset by 30 ms; the next one lowers it by 20 ms."""
    one = NodeClock()
    offsets = [1.0] * 2 + [1.03] * 5 + [1.01] * 2
    times = [timestamp(one, 1 + n / 10, offset) for n, offset in enumerate(offsets)]
    behind_ms = [round((1 + n / 10 - time) * 1000) - 1000 for n, time in enumerate(times)]
    assert behind_ms == [0, 0, 10, 20, 30, 30, 30, 10, 10]


def test_clock_step_is_used_at_once() -> None:
    one = NodeClock()
    assert timestamp(one, 0, -3600) == 3600
    assert timestamp(one, 1, 3600) == -3599


def test_resumed_head_continues_after_the_last_recorded_time() -> None:
    """Its first exchanges measure an offset that is 50 ms higher than the previous head's."""
    one = NodeClock()
    last = timestamp(one, 1.0, 0.2)
    two = NodeClock()
    two.resume("a", 0.25, 0.0, (round((T0 + 1.0) * 1e9), T0 + last))
    times = [timestamp(two, 1 + n / 10, 0.25) for n in range(1, 8)]
    assert [round(1000 * (time - last)) for time in times] == [90, 180, 270, 360, 450, 550, 650]
    assert timestamp(two, 2.0, 0.2, life="b") == pytest.approx(1.8)


def test_sample_that_arrives_again_gets_the_same_time() -> None:
    one = NodeClock()
    readings = [(n / 10, 1.0 + n // 4 * 0.05) for n in range(1, 12)]
    times = [timestamp(one, *reading) for reading in readings]
    assert [timestamp(one, at, 2.0) for at, _ in readings] == times
    assert timestamp(one, 1.2, 1.1) > times[-1]


_OFFSETS = st.floats(-2, 2)
_READINGS = st.lists(st.tuples(st.floats(0.0001, 2), st.floats(0, 100), _OFFSETS), min_size=1, max_size=40)


@given(_READINGS, st.integers(0, 40))
def test_times_never_step_back_and_converge_to_the_offset(
    readings: list[tuple[float, float, float]], lives: int
) -> None:
    """The arguments are time steps, lateness in ms, offsets, and samples after which the life changes."""
    one, at, times, offset = NodeClock(), 0.0, [], 0.0
    for n, (step, late_ms, offset) in enumerate(readings):
        at += step
        times.append(timestamp(one, at, offset, late_ms, "a" if n < lives else "b"))
    assert all(before <= after for before, after in itertools.pairwise(times))
    life = "a" if len(readings) <= lives else "b"
    assert timestamp(one, at + 40, offset, life=life) == pytest.approx(at + 40 - offset, abs=0.001)


def exchange(at_s: float, ahead_s: float, took_s: float) -> tuple[ClockExchange, float]:
    """Return a ping's exchange with a clock that is ``ahead_s`` ahead, and the arrival of its answer."""
    there = round((T0 + at_s + took_s / 2 + ahead_s) * 1e9)
    return ClockExchange(round((T0 + at_s) * 1e9), there, there), T0 + at_s + took_s


def test_samples_of_a_former_life_keep_its_offset() -> None:
    """The clock was set by an hour between two runs of the agent; samples of the first run arrive late."""
    clock = NodeClock()
    clock.start_life("a", *exchange(0, 3, took_s=0.002))
    clock.start_connection()
    assert clock.add(*exchange(100, 3603, took_s=0.002)) is None
    assert clock.timestamp("a", round((T0 + 13) * 1e9), 0.0)[0] == pytest.approx(T0 + 10, abs=0.01)
    clock.start_life("b", *exchange(101, 3603, took_s=0.002))
    assert clock.timestamp("b", round((T0 + 3703) * 1e9), 0.0)[0] == pytest.approx(T0 + 100, abs=0.01)
    assert clock.offset_of("a") == pytest.approx(3, abs=0.01)
