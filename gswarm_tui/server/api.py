"""Our own HTTP API, ``/api/v1``: nodes, GPUs, sessions, marks, events, findings, settings, SQL,
frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from gswarm_agent.metrics import GPU_BY_NAME, HOST_BY_NAME, known_groups
from gswarm_tui.common.errors import nearest, quote
from gswarm_tui.control import intents
from gswarm_tui.control.recorder import Recorder
from gswarm_tui.control.status import head_status, node_rows, session_rows
from gswarm_tui.fleet.events import EVENT_KINDS, EventLogged, FleetExamined, json_object
from gswarm_tui.fleet.findings import in_order
from gswarm_tui.fleet.node import NodeState
from gswarm_tui.fleet.snapshot import GPU_ROW, gpu_rows, node_object
from gswarm_tui.printing.cells import checked_depth, plain
from gswarm_tui.printing.json_output import findings_object, utc, with_times
from gswarm_tui.server import models
from gswarm_tui.server.event_stream import FrameStream, Metrics
from gswarm_tui.server.requests import (
    BAD_REQUEST,
    UNAVAILABLE,
    RecorderRequests,
    json_answer,
    problems,
    sentence,
)
from gswarm_tui.store.querying.results import QueryError

MOST_EVENTS = 5000
NodeName = Annotated[str, Path(min_length=1, max_length=255, description="Name of a node")]
SessionId = Annotated[str, Path(min_length=1, max_length=200, description="name or number of a session")]
_EVENT_STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}


def api_router(attached: Recorder, requests: RecorderRequests, stream: FrameStream) -> APIRouter:
    """Return the calls of ``/api/v1`` on a recorder."""
    router = APIRouter(prefix="/api/v1", tags=["api/v1"], responses=problems())
    calls = _ApiCalls(attached, requests, stream)
    router.get("/recording", response_model=dict[str, Any])(calls.recording)
    router.get("/nodes", response_model=dict[str, list[dict[str, Any]]])(calls.nodes)
    router.get("/nodes/{node}", response_model=dict[str, Any], responses=problems(404))(calls.node)
    router.get("/gpus", response_model=dict[str, list[dict[str, Any]]], responses=problems(404))(calls.gpus)
    router.get("/sessions", response_model=dict[str, Any])(calls.sessions)
    router.get("/events", response_model=dict[str, Any])(calls.events)
    router.get("/findings", response_model=dict[str, Any])(calls.findings)
    router.get("/interval")(calls.interval)
    router.get("/metrics")(calls.metrics)
    router.get("/frames", response_class=StreamingResponse, responses=_EVENT_STREAM)(calls.frames)
    changes = APIRouter(responses=problems(409, 504))
    changes.post("/sessions", status_code=201, response_model=dict[str, Any])(calls.start_session)
    changes.post("/sessions/{session:path}/stop", response_model=dict[str, Any])(calls.stop_session)
    changes.patch("/sessions/{session:path}/stop", include_in_schema=False)(calls.refuse_change)
    changes.patch("/sessions/{session:path}", response_model=dict[str, Any])(calls.change_session)
    changes.post("/marks", status_code=201, response_model=dict[str, Any])(calls.set_mark)
    changes.put("/interval")(calls.set_interval)
    changes.put("/metrics")(calls.set_metrics)
    router.include_router(changes)
    router.post("/query", response_model=dict[str, Any])(calls.query)
    return router


class _ApiCalls:
    def __init__(self, attached: Recorder, requests: RecorderRequests, stream: FrameStream) -> None:
        self._attached = attached
        self._requests = requests
        self._stream = stream

    # State

    async def recording(self) -> Response:
        """Return the state of the recording."""
        run = self._attached
        status = head_status(run, run.path, run.uid, run.label)
        del status["pid"]  # this server's
        sessions = [with_times(session) for session in status["sessions"]]
        return json_answer({**with_times(status), "sessions": sessions, "interruption": run.interruption})

    async def nodes(self) -> Response:
        """List the nodes with their state and the figures of the job's GPUs."""
        return json_answer({"nodes": node_rows(self._attached)})

    async def node(self, node: NodeName) -> Response:
        """Return everything about a node: facts, newest samples, processes."""
        state = self._node(node)
        return json_answer(with_times(node_object(self._attached.fleet, state, self._attached.now())))

    async def gpus(
        self, node: Annotated[str | None, Query(max_length=255, description="Only GPUs of this node")] = None
    ) -> Response:
        """List the GPUs of all nodes, or of one, with their newest samples."""
        now, fleet = self._attached.now(), self._attached.fleet
        gpus: list[dict[str, Any]] = []
        for state in list(fleet.nodes.values()) if node is None else [self._node(node)]:
            if state.facts:
                rows = gpu_rows([node_object(fleet, state, now)])
                gpus += [dict(zip(GPU_ROW, row, strict=True)) for row in rows]
                await asyncio.sleep(0)  # other requests are answered meanwhile
        return json_answer({"gpus": gpus})

    def _node(self, name: str) -> NodeState:
        """Return a node. Raises HTTPException."""
        nodes = self._attached.fleet.nodes
        if (state := nodes.get(name)) is None:
            raise HTTPException(404, f"There is no node {quote(name)}{nearest(name, nodes)}.")
        return state

    async def sessions(self) -> Response:
        """List the sessions."""
        return json_answer({"sessions": [with_times(row) for row in session_rows(self._attached)]})

    async def events(
        self,
        kind: Annotated[
            str | None, Query(max_length=100, description="Only of this kind, such as mark")
        ] = None,
        limit: Annotated[int, Query(ge=1, le=MOST_EVENTS, description="Only the newest ones")] = 100,
    ) -> Response:
        """List the newest events; the table events of the recording has all."""
        log = self._attached.fleet.event_log
        chosen = [event for event in log if kind in (None, event.kind)]
        if kind is not None and not chosen and kind not in EVENT_KINDS:
            these = ", ".join(sorted(EVENT_KINDS))
            raise HTTPException(BAD_REQUEST, f"{quote(kind)} isn't a kind of event; these are: {these}.")
        return json_answer({"events": [_event(event) for event in chosen[-limit:]]})

    async def findings(self) -> Response:
        """List what the rules found so far, what isn't measured, and the GPU-hours by cause."""
        fleet = self._attached.fleet
        examined = fleet.examined or FleetExamined(0.0, {}, {}, {})
        return json_answer(
            findings_object(in_order(fleet.findings.values()), examined.not_measured, examined.ledger)
        )

    async def frames(
        self,
        metrics: Annotated[
            str | None,
            Query(max_length=2000, description="Only these metrics, separated by commas: util_pct,power_w"),
        ] = None,
        limit: Annotated[
            int | None, Query(ge=1, lt=2**31, description="End the stream after this many messages")
        ] = None,
    ) -> StreamingResponse:
        """Stream the newest samples of all nodes as server-sent events, whenever there are new ones."""
        chosen = _metrics(metrics)
        if self._stream.is_full:
            raise HTTPException(UNAVAILABLE, "Too many readers follow this recording; close one first.")
        return StreamingResponse(self._stream.messages(chosen, limit), media_type="text/event-stream")

    # Changes

    async def start_session(self, session: models.NewSession) -> Response:
        """Start a session, now or in the past."""
        row = await self._change(lambda: intents.StartSession(session.name, session.started_at, session.note))
        return json_answer(with_times(row), 201)

    async def stop_session(self, session: SessionId, end: models.SessionEnd | None = None) -> Response:
        """Stop a session, now or in the past."""
        ended_at = None if end is None else end.ended_at
        stopped = await self._change(lambda: intents.StopSession(session, ended_at, wait=True))
        return json_answer(with_times(stopped["stopped"][0]))

    async def refuse_change(self) -> None:
        """Refuse what would otherwise change a session whose name ends in "/stop". Raises HTTPException."""
        raise HTTPException(405, "Method Not Allowed", {"Allow": "POST"})

    async def change_session(self, session: SessionId, change: models.SessionChange) -> Response:
        """Rename a session or change its note."""
        row = await self._change(lambda: intents.ChangeSession(session, change.name, change.note))
        return json_answer(with_times(row))

    async def set_mark(self, mark: models.NewMark) -> Response:
        """Set a mark, now or in the past."""
        row = await self._change(lambda: intents.SetMark(mark.name, mark.values, mark.at))
        return json_answer({"name": row["name"], "at": utc(row["at"])}, 201)

    async def interval(self) -> models.SamplingInterval:
        """Return the time between samples."""
        return models.SamplingInterval(interval_ms=self._attached.fleet.interval_ms)

    async def set_interval(self, interval: models.SamplingInterval) -> models.SamplingInterval:
        """Change the time between samples on all nodes."""
        row = await self._change(lambda: intents.ChangeInterval(interval.interval_ms))
        return models.SamplingInterval(interval_ms=row["interval_ms"])

    async def metrics(self) -> models.MetricGroups:
        """Return the groups of metrics that are measured."""
        return models.MetricGroups(groups=list(self._attached.fleet.metrics))

    async def set_metrics(self, metrics: models.MetricGroups) -> models.MetricGroups:
        """Measure only these groups of metrics, and core, on all nodes."""
        row = await self._change(lambda: intents.ChangeMetrics(known_groups(metrics.groups)))
        return models.MetricGroups(groups=row["groups"])

    async def _change(self, intent: Callable[[], intents.Intent]) -> dict[str, Any]:
        """Send an intent to the recorder; one with invalid values is answered with status 400."""
        try:
            made = intent()
        except intents.IntentError as error:
            raise HTTPException(BAD_REQUEST, sentence(str(error))) from None
        return await self._requests.carry_out(made)

    # SQL

    async def query(self, query: models.Query, request: Request) -> Response:
        """Run one SQL statement that reads, in the recorder, within limits."""
        limits: dict[str, Any] = {"most": query.max_rows, "timeout_s": query.timeout_s}
        result = await self._requests.query(query.sql, **limits, client=request)
        columns = [{"name": n, "type": t} for n, t in zip(result.names, result.types, strict=True)]
        try:
            with checked_depth():
                rows = [
                    [plain(value, kind) for value, kind in zip(row, result.types, strict=True)]
                    for row in result.rows
                ]
                return json_answer({"columns": columns, "rows": rows, "truncated": result.truncated})
        except QueryError as error:
            raise HTTPException(BAD_REQUEST, sentence(str(error))) from None


def _metrics(text: str | None) -> Metrics:
    """Return the metrics that a text names. Raises HTTPException for an unknown one."""
    if text is None:
        return None
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    known = GPU_BY_NAME.keys() | HOST_BY_NAME.keys()
    for name in sorted(names - known):
        raise HTTPException(BAD_REQUEST, f"{quote(name)} isn't a metric{nearest(name, known)}.")
    return names


def _event(event: EventLogged) -> dict[str, Any]:
    detail = json_object(event.detail)
    return {
        "at": utc(event.at),
        "kind": event.kind,
        "severity": event.severity,
        "message": event.message,
        "node": event.node,
        "gpu": event.gpu,
        "detail": detail or event.detail,
    }
