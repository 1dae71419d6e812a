"""The steps of the ladder, the least costly first; each asks only if the one before can't tell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from gswarm_agent.asking.steps import FLIGHT_RECORDER
from gswarm_tui.asking import flight_recorder, processes, trace
from gswarm_tui.asking.asking import Asking, Step
from gswarm_tui.asking.verdict import RankProcess, Verdict
from gswarm_tui.link.tracing import TraceChoice, TraceError, Tracing

TRACE = "trace"
FLIGHT_RECORDER_S = 10
"""Time in which a node's ranks answer, seconds: a dump took 3 s on a node with 24 ranks."""

Query = Callable[..., list[tuple[Any, ...]]]
"""Runs SQL on the recording, and returns its rows."""


def build_steps(tracing: Tracing, query: Query) -> tuple[Step, ...]:
    """Return the ladder."""

    async def look_at_processes(_asking: Asking, ranks: Sequence[RankProcess]) -> Verdict:
        return processes.judge(ranks)

    async def ask_flight_recorder(asking: Asking, ranks: Sequence[RankProcess]) -> Verdict:
        pids: dict[str, list[int]] = {}
        for one in ranks:
            pids.setdefault(one.node, []).append(one.pid)
        requests = {node: {"pids": them, "seconds": FLIGHT_RECORDER_S} for node, them in pids.items()}
        answers = await asking.ask(FLIGHT_RECORDER, requests, seconds=FLIGHT_RECORDER_S + 1)
        return await asyncio.to_thread(flight_recorder.judge, answers, ranks)

    async def ask_trace(_asking: Asking, ranks: Sequence[RankProcess]) -> Verdict:
        try:
            tracing.start(TraceChoice())
        except TraceError as error:
            return Verdict(TRACE, str(error))
        await tracing.wait()
        files = [f"{one.file}" for one in tracing.ranks() if one.imported]
        if not files:
            reasons = [one.reason for one in tracing.ranks() if one.reason]
            return Verdict(TRACE, reasons[0] if reasons else "no rank was traced")
        rows = await asyncio.to_thread(query, trace.WAITS_OF_FILES, files)
        return trace.judge(rows, ranks)

    return (
        Step(
            processes.PROCESSES,
            "the process table",
            "the agents read /proc, which the job doesn't notice",
            look_at_processes,
        ),
        Step(
            FLIGHT_RECORDER,
            "Flight Recorder",
            "each rank answers by its worker server, or writes its last collectives to a file",
            ask_flight_recorder,
        ),
        Step(
            TRACE,
            "a trace of half a second",
            "each rank records half a second with PyTorch's profiler, which slows it; takes up to a minute",
            ask_trace,
        ),
    )
