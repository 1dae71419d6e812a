"""The steps of the ladder, the least costly first; each asks only if the one before can't tell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gswarm_agent.asking.steps import FLIGHT_RECORDER, RAS, STACKS
from gswarm_tui.asking import flight_recorder, processes, py_spy, ras, trace
from gswarm_tui.asking.asking import MIB, Asking, Step
from gswarm_tui.asking.verdict import RankProcess, Verdict
from gswarm_tui.link.tracing import TraceChoice, TraceError, Tracing

TRACE = "trace"
RAS_S, RAS_BYTES, AGAIN_S = 12, 16 * MIB, 1.0
"""RAS collects for up to 10 s. A report has 8 MiB at most, more as JSON; the second follows after 1 s."""
FLIGHT_RECORDER_S = 10
"""Time in which a node's ranks answer, seconds: a dump took 3 s on a node with 24 ranks."""

Query = Callable[..., list[tuple[Any, ...]]]
"""Runs SQL on the recording, and returns its rows."""


def build_steps(tracing: Tracing, query: Query, py_spy_path: str = "") -> tuple[Step, ...]:
    """Return the ladder; ``py_spy_path`` is where the nodes have py-spy, empty for the recorder's own."""

    async def look_at_processes(asking: Asking, ranks: Sequence[RankProcess]) -> Verdict:
        return processes.judge(ranks, asking.unread)

    async def ask_ras(asking: Asking, ranks: Sequence[RankProcess]) -> Verdict:
        if not (speakers := [one for one in ranks if one.nccl]):
            return Verdict(RAS, "no rank has loaded NCCL")
        first, verdict = speakers[0], Verdict(RAS, "")
        reports: list[str] = []
        if why := ras.why_not(first.nccl, force=asking.force):
            return Verdict(RAS, why)
        request = {"address": first.ras, "seconds": RAS_S}
        while len(reports) < 2 and not verdict.decided:
            if reports:
                await asyncio.sleep(AGAIN_S)
            answers = await asking.ask(RAS, {first.node: request}, seconds=RAS_S + 2, most=RAS_BYTES)
            report = answers[first.node].get("report")
            if not isinstance(report, str):
                return verdict if reports else Verdict(RAS, f"{first.node}: {answers[first.node].get('why')}")
            reports.append(report)
            second = reports[1] if len(reports) > 1 else None
            verdict = await asyncio.to_thread(ras.judge, reports[0], second, ranks)
        return verdict

    async def ask_flight_recorder(asking: Asking, ranks: Sequence[RankProcess]) -> Verdict:
        pids: dict[str, list[int]] = {}
        for one in ranks:
            pids.setdefault(one.node, []).append(one.pid)
        requests = {node: {"pids": them, "seconds": FLIGHT_RECORDER_S} for node, them in pids.items()}
        answers = await asking.ask(FLIGHT_RECORDER, requests, seconds=FLIGHT_RECORDER_S + 1, most=16 * MIB)
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
            RAS,
            "NCCL RAS",
            "the RAS thread of one rank is queried twice and asks all others; GPUs aren't touched",
            ask_ras,
        ),
        Step(
            FLIGHT_RECORDER,
            "Flight Recorder",
            "each rank answers by its worker server, or writes its last collectives to a file",
            ask_flight_recorder,
        ),
        Step(
            STACKS,
            "stacks",
            "a worker server answers, or py-spy stops each rank for some milliseconds, up to six times",
            partial(py_spy.ask_stacks, configured=py_spy_path),
        ),
        Step(
            TRACE,
            "a trace of half a second",
            "each rank records half a second with PyTorch's profiler, which slows it; takes up to a minute",
            ask_trace,
        ),
    )
