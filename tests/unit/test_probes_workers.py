"""Tests of the worker threads: a call that hangs blocks only its own thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from gswarm_agent.probes.workers import WorkerPool

AGES = 30.0
"""Longer than any test may take: a wait of this length hangs."""
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
    return [thread for thread in threading.enumerate() if thread.name == "pool-test"]


def gather(pool: WorkerPool, patience: float = 0.2) -> dict[int, str]:
    return pool.gather(time.monotonic() + AGES, patience)


def test_all_keys_share_one_thread_while_they_answer(gates: dict[int, threading.Event]) -> None:
    pool = WorkerPool(4, "pool-test")
    for answer in ("a", "b", "c"):
        pool.start(job(gates, answer), ALL)
        assert gather(pool, AGES) == {key: f"{answer}{key}" for key in range(4)}
    assert len(threads()) == 1
    assert pool.close(AGES)
    assert threads() == []


def test_a_hanging_key_has_no_result_and_the_others_have(gates: dict[int, threading.Event]) -> None:
    pool = WorkerPool(4, "pool-test")
    gates[1].clear()
    for answer in ("a", "b"):
        pool.start(job(gates, answer), ALL)
        assert gather(pool) == {key: f"{answer}{key}" for key in (0, 2, 3)}
    gates[1].set()
    assert pool.close(AGES)


def test_only_started_keys_have_results(gates: dict[int, threading.Event]) -> None:
    pool = WorkerPool(4, "pool-test")
    for keys in ([0, 1, 2], ALL, [3]):
        pool.start(job(gates, "a"), keys)
        assert gather(pool, AGES) == {key: f"a{key}" for key in keys}
    assert len(threads()) == 1
    assert pool.close(AGES)


@pytest.mark.parametrize("waited_for", [True, False])
def test_a_hanging_key_can_be_given_a_new_thread(gates: dict[int, threading.Event], waited_for: bool) -> None:
    pool = WorkerPool(4, "pool-test")
    gates[3].clear()
    at_the_last = threading.Event()

    def work(key: int) -> str:
        if key == 3:
            at_the_last.set()
        return job(gates, "a")(key)

    pool.start(work, ALL)
    assert at_the_last.wait(AGES)
    if waited_for:
        assert gather(pool) == {0: "a0", 1: "a1", 2: "a2"}
    pool.renew(3)
    pool.start(lambda key: f"b{key}", ALL)
    assert gather(pool, AGES) == {key: f"b{key}" for key in ALL}
    gates[3].set()
    assert pool.close(AGES)


def test_a_round_that_is_not_gathered_takes_no_key_from_the_next(gates: dict[int, threading.Event]) -> None:
    pool = WorkerPool(4, "pool-test")
    for _ in range(100):  # the thread may have begun, have ended, or be at the job
        pool.start(job(gates, "a"), [3])
        pool.start(job(gates, "b"), [0, 1, 2])
        assert gather(pool, AGES) == {key: f"b{key}" for key in (0, 1, 2)}
    assert pool.close(AGES)


def test_several_keys_can_hang(gates: dict[int, threading.Event]) -> None:
    pool = WorkerPool(4, "pool-test")
    gates[0].clear()
    gates[3].clear()
    pool.start(job(gates, "a"), ALL)
    assert gather(pool) == {1: "a1", 2: "a2"}
    gates[0].set()
    gates[3].set()
    assert pool.close(AGES)


def rounds_until(pool: WorkerPool, work: Callable[[int], str], keys: set[int]) -> bool:
    """Return whether, after some rounds, these keys and no others have results."""
    deadline = time.monotonic() + AGES
    while time.monotonic() < deadline:
        pool.start(work, ALL)
        results = gather(pool)
        if set(results) == keys:
            return results == {key: work(key) for key in keys}
    return False


def test_a_key_has_results_again_after_its_job_returns(gates: dict[int, threading.Event]) -> None:
    pool = WorkerPool(4, "pool-test")
    gates[2].clear()
    pool.start(job(gates, "a"), ALL)
    assert gather(pool) == {0: "a0", 1: "a1", 3: "a3"}
    gates[2].set()
    assert rounds_until(pool, job(gates, "b"), {0, 1, 2, 3})
    assert pool.close(AGES)


def test_gather_returns_at_its_deadline(gates: dict[int, threading.Event]) -> None:
    pool = WorkerPool(4, "pool-test")
    gates[0].clear()
    pool.start(job(gates, "a"), ALL)
    assert pool.gather(time.monotonic(), AGES) == {}
    assert rounds_until(pool, job(gates, "b"), {1, 2, 3})
    gates[0].set()
    assert pool.close(AGES)


def test_gather_raises_the_error_of_a_job() -> None:
    pool = WorkerPool(2, "pool-test")

    def fails(key: int) -> str:
        raise ZeroDivisionError(key)

    pool.start(fails, [0, 1])
    with pytest.raises(ZeroDivisionError):
        gather(pool, AGES)
    assert pool.close(AGES)


def test_an_error_after_the_deadline_is_raised_in_a_later_round() -> None:
    pool = WorkerPool(1, "pool-test")
    begun, gate = threading.Event(), threading.Event()

    def fails_late(key: int) -> str:
        begun.set()
        assert gate.wait(AGES)
        raise ZeroDivisionError(key)

    pool.start(fails_late, [0])
    assert begun.wait(AGES)
    assert pool.gather(time.monotonic(), AGES) == {}
    gate.set()
    with pytest.raises(ZeroDivisionError):
        rounds_until(pool, str, {0})
    assert pool.close(AGES)


def test_close_returns_false_while_a_job_is_running(gates: dict[int, threading.Event]) -> None:
    pool = WorkerPool(1, "pool-test")
    gates[0].clear()
    pool.start(job(gates, "a"), [0])
    assert not pool.close(0)
    gates[0].set()
    assert pool.close(AGES)
