"""``GET /metrics``: a recorder's metrics for Prometheus, rendered on request."""

from __future__ import annotations

import asyncio
import gzip
import shutil
from pathlib import Path

from fastapi import APIRouter, Request, Response

from gswarm_tui.control.recorder import Recorder
from gswarm_tui.server.exposition import CONTENT_TYPE, RecorderHealth, exposition_text, fleet_tables
from gswarm_tui.server.requests import problems


def metrics_router(attached: Recorder) -> APIRouter:
    """Return the call that Prometheus scrapes."""
    router = APIRouter(tags=["Prometheus"])

    @router.get(
        "/metrics",
        response_class=Response,
        responses=problems() | {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics(request: Request) -> Response:
        """Return all metrics for Prometheus."""
        compress = "gzip" in request.headers.get("accept-encoding", "")
        free = await asyncio.to_thread(_disk_free, attached.path)
        health = RecorderHealth(
            attached.uid, attached.started_at, attached.recorder, not attached.interruption, free
        )
        tables = fleet_tables(attached.fleet, attached.now(), attached.job_id, health)
        # In a thread, as 8,192 GPUs take 3 s; other requests are answered meanwhile.
        text = await asyncio.to_thread(exposition_text, tables)
        text = await asyncio.to_thread(gzip.compress, text, 1) if compress else text
        headers = {"Content-Encoding": "gzip"} if compress else {}
        return Response(text, headers=headers, media_type=CONTENT_TYPE)

    return router


def _disk_free(recording: Path) -> int | None:
    try:
        return shutil.disk_usage(recording.parent).free
    except OSError:
        return None
