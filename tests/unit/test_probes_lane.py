"""A call that hangs holds up nothing but itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from gswarm_agent.probes.lane import Errand, Lanes

AGES = 30.0
"""Longer than any test may take: what waits this long hangs."""
ALL = range(4)


@pytest.fixture
def gates() -> Iterator[dict[int, threading.Event]]:
    """Jobs by key wait at their gate, open unless a test closes it; all open at the end."""
    gates = {key: threading.Event() for key in range(4)}
    for gate in gates.values():
        gate.set()
    yield gates
    for gate in gates.values():
        gate.set()


def job(gates: dict[int, threading.Event], answer: str) -> Callable[[int], str]:
    def work(key: int) -> str:
        gates[key].wait(AGES)
        return f"{answer}{key}"

    return work


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "lane-test"]


def gather(lanes: Lanes[str], patience: float = 0.2) -> dict[int, str]:
    return lanes.gather(time.monotonic() + AGES, patience)


def test_all_keys_share_one_thread_while_they_answer(gates: dict[int, threading.Event]) -> None:
    lanes: Lanes[str] = Lanes(4, "lane-test")
    for answer in ("a", "b", "c"):
        lanes.start(job(gates, answer), ALL)
        assert gather(lanes, AGES) == {key: f"{answer}{key}" for key in range(4)}
    assert len(threads()) == 1
    assert lanes.close(AGES)
    assert threads() == []


def test_a_key_that_hangs_has_no_result_and_the_others_have(gates: dict[int, threading.Event]) -> None:
    lanes: Lanes[str] = Lanes(4, "lane-test")
    gates[1].clear()
    for answer in ("a", "b"):
        lanes.start(job(gates, answer), ALL)
        assert gather(lanes) == {key: f"{answer}{key}" for key in (0, 2, 3)}
    gates[1].set()
    assert lanes.close(AGES)


def test_only_keys_that_are_asked_answer(gates: dict[int, threading.Event]) -> None:
    lanes: Lanes[str] = Lanes(4, "lane-test")
    for keys in ([0, 1, 2], ALL, [3]):
        lanes.start(job(gates, "a"), keys)
        assert gather(lanes, AGES) == {key: f"a{key}" for key in keys}
    assert len(threads()) == 1
    assert lanes.close(AGES)


@pytest.mark.parametrize("waited_for", [True, False])
def test_a_key_that_hangs_may_be_asked_in_a_new_thread(
    gates: dict[int, threading.Event], waited_for: bool
) -> None:
    lanes: Lanes[str] = Lanes(4, "lane-test")
    gates[3].clear()
    at_the_last = threading.Event()

    def work(key: int) -> str:
        if key == 3:
            at_the_last.set()
        return job(gates, "a")(key)

    lanes.start(work, ALL)
    assert at_the_last.wait(AGES)
    if waited_for:
        assert gather(lanes) == {0: "a0", 1: "a1", 2: "a2"}
    lanes.renew(3)
    lanes.start(lambda key: f"b{key}", ALL)
    assert gather(lanes, AGES) == {key: f"b{key}" for key in ALL}
    gates[3].set()
    assert lanes.close(AGES)


def test_a_round_that_nobody_waits_for_takes_no_key_from_the_next(gates: dict[int, threading.Event]) -> None:
    lanes: Lanes[str] = Lanes(4, "lane-test")
    for _ in range(100):  # the thread may have begun, have ended, or be at the job
        lanes.start(job(gates, "a"), [3])
        lanes.start(job(gates, "b"), [0, 1, 2])
        assert gather(lanes, AGES) == {key: f"b{key}" for key in (0, 1, 2)}
    assert lanes.close(AGES)


def test_several_keys_may_hang(gates: dict[int, threading.Event]) -> None:
    lanes: Lanes[str] = Lanes(4, "lane-test")
    gates[0].clear()
    gates[3].clear()
    lanes.start(job(gates, "a"), ALL)
    assert gather(lanes) == {1: "a1", 2: "a2"}
    gates[0].set()
    gates[3].set()
    assert lanes.close(AGES)


def rounds_until(lanes: Lanes[str], work: Callable[[int], str], keys: set[int]) -> bool:
    """Whether, after some rounds, these keys and no others have results."""
    deadline = time.monotonic() + AGES
    while time.monotonic() < deadline:
        lanes.start(work, ALL)
        found = gather(lanes)
        if set(found) == keys:
            return found == {key: work(key) for key in keys}
    return False


def test_a_key_that_comes_back_answers_again(gates: dict[int, threading.Event]) -> None:
    lanes: Lanes[str] = Lanes(4, "lane-test")
    gates[2].clear()
    lanes.start(job(gates, "a"), ALL)
    assert gather(lanes) == {0: "a0", 1: "a1", 3: "a3"}
    gates[2].set()
    assert rounds_until(lanes, job(gates, "b"), {0, 1, 2, 3})
    assert lanes.close(AGES)


def test_nothing_is_waited_for_after_the_time(gates: dict[int, threading.Event]) -> None:
    lanes: Lanes[str] = Lanes(4, "lane-test")
    gates[0].clear()
    lanes.start(job(gates, "a"), ALL)
    assert lanes.gather(time.monotonic(), AGES) == {}
    assert rounds_until(lanes, job(gates, "b"), {1, 2, 3})
    gates[0].set()
    assert lanes.close(AGES)


def test_what_a_job_raises_is_raised() -> None:
    lanes: Lanes[str] = Lanes(2, "lane-test")

    def fails(key: int) -> str:
        raise ZeroDivisionError(key)

    lanes.start(fails, [0, 1])
    with pytest.raises(ZeroDivisionError):
        gather(lanes, AGES)
    assert lanes.close(AGES)


def test_what_a_job_raises_that_nobody_waited_for_is_raised_at_a_later_round() -> None:
    lanes: Lanes[str] = Lanes(1, "lane-test")
    begun, gate = threading.Event(), threading.Event()

    def fails_late(key: int) -> str:
        begun.set()
        assert gate.wait(AGES)
        raise ZeroDivisionError(key)

    lanes.start(fails_late, [0])
    assert begun.wait(AGES)
    assert lanes.gather(time.monotonic(), AGES) == {}
    gate.set()
    with pytest.raises(ZeroDivisionError):
        rounds_until(lanes, str, {0})
    assert lanes.close(AGES)


def test_closing_says_when_a_job_is_still_at_work(gates: dict[int, threading.Event]) -> None:
    lanes: Lanes[str] = Lanes(1, "lane-test")
    gates[0].clear()
    lanes.start(job(gates, "a"), [0])
    assert not lanes.close(0)
    gates[0].set()
    assert lanes.close(AGES)


def test_an_errand_is_done_while_nobody_waits(gates: dict[int, threading.Event]) -> None:
    errand: Errand[str] = Errand("lane-test")
    gates[0].clear()
    errand.start(lambda: job(gates, "a")(0))
    assert errand.take() is None
    gates[0].set()
    assert errand.take(AGES) == "a0"
    assert errand.take() is None
    assert errand.close(AGES)


def test_what_an_errand_raises_is_raised_when_it_is_taken() -> None:
    errand: Errand[int] = Errand("lane-test")
    errand.start(lambda: int("none"))
    with pytest.raises(ValueError, match="none"):
        errand.take(AGES)
    errand.start(lambda: int("2"))
    assert errand.take(AGES) == 2
    assert errand.close(AGES)
