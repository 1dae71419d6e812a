"""``GET /metrics``: a recorder's metrics for Prometheus, rendered on request, at most once an interval."""

from __future__ import annotations

import asyncio
import gzip
import shutil
from pathlib import Path

from fastapi import APIRouter, Request, Response

from gswarm_tui.control.attached import AttachedRun
from gswarm_tui.server.exposition import (
    OPENMETRICS,
    PLAIN,
    FamilyTable,
    RecorderHealth,
    exposition_text,
    fleet_tables,
)
from gswarm_tui.server.requests import problems

_TEXT = {"schema": {"type": "string"}}


class Scrapes:
    """Texts of a run's metrics: all scrapers of one interval get the same text."""

    def __init__(self, run: AttachedRun) -> None:
        self._run = run
        self._texts: dict[tuple[str, bool], asyncio.Task[bytes]] = {}

    async def text(self, content_type: str, *, compress: bool) -> bytes:
        """Return the metrics in this format, compressed with gzip if ``compress``."""
        form = content_type, compress
        if (rendering := self._texts.get(form)) is None:
            rendering = self._texts[form] = asyncio.create_task(self._render(*form))
        return await asyncio.shield(rendering)  # others may wait for it when this client leaves

    async def _render(self, content_type: str, compress: bool) -> bytes:
        began = self._run.loop.time()
        try:
            free = await asyncio.to_thread(_disk_free, self._run.path)
            # In a thread, as 8,192 GPUs take 3 s; other requests are answered meanwhile.
            text = await asyncio.to_thread(exposition_text, self._tables(free), content_type)
            return await asyncio.to_thread(gzip.compress, text, 1) if compress else text
        finally:
            expires = began + self._run.fleet.interval_s
            self._run.loop.call_at(expires, self._texts.pop, (content_type, compress), None)

    def _tables(self, disk_free_bytes: int | None) -> list[FamilyTable]:
        run = self._run
        health = RecorderHealth(run.uid, run.started_at, run.recorder, not run.interruption, disk_free_bytes)
        return fleet_tables(run.fleet, run.now(), run.job_id, health)


def metrics_router(attached: AttachedRun) -> APIRouter:
    """Return the call that Prometheus scrapes."""
    router = APIRouter(tags=["Prometheus"])
    scrapes = Scrapes(attached)

    @router.get(
        "/metrics",
        response_class=Response,
        responses=problems()
        | {200: {"content": {"text/plain": _TEXT, "application/openmetrics-text": _TEXT}}},
    )
    async def metrics(request: Request) -> Response:
        """Return all metrics for Prometheus, as OpenMetrics when the Accept header asks for it."""
        wants_openmetrics = "application/openmetrics-text" in request.headers.get("accept", "")
        content_type = OPENMETRICS if wants_openmetrics else PLAIN
        compress = "gzip" in request.headers.get("accept-encoding", "")
        text = await scrapes.text(content_type, compress=compress)
        headers = {"Content-Encoding": "gzip"} if compress else {}
        return Response(text, headers=headers, media_type=content_type)

    return router


def _disk_free(recording: Path) -> int | None:
    try:
        return shutil.disk_usage(recording.parent).free
    except OSError:
        return None
