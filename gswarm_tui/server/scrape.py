"""``GET /metrics``: a recorder's metrics for Prometheus, rendered on request, at most once an interval.

This process collects them (``exposition.py``), and a child process renders the text (``rendering.py``).
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from fastapi import APIRouter, HTTPException, Request, Response

from gswarm_tui.control.attached import AttachedRun
from gswarm_tui.server.answers import problems
from gswarm_tui.server.exposition import FamilyTable, RecorderHealth, fleet_tables
from gswarm_tui.server.exposition_text import negotiated
from gswarm_tui.server.rendering import RenderingError, RenderingProcess

_TEXT = {"schema": {"type": "string"}}


class Scrapes:
    """Texts of a run's metrics: all scrapers of one interval get the same text."""

    def __init__(self, run: AttachedRun) -> None:
        self._run = run
        self._process = RenderingProcess()
        self._texts: dict[tuple[str, bool], asyncio.Task[bytes]] = {}

    async def text(self, content_type: str, *, compress: bool) -> bytes:
        """Return the metrics in this format, compressed with gzip if ``compress``. Raises RenderingError."""
        form = content_type, compress
        if (rendering := self._texts.get(form)) is None:
            rendering = self._texts[form] = asyncio.create_task(self._render(*form))
        return await asyncio.shield(rendering)  # others may wait for it when this client leaves

    async def close(self) -> None:
        """End the process that renders."""
        for rendering in self._texts.values():
            rendering.cancel()
        await self._process.close()

    async def _render(self, content_type: str, compress: bool) -> bytes:
        began = self._run.loop.time()
        try:
            free = await asyncio.to_thread(_disk_free, self._run.path)
            return await self._process.text(self._tables(free), content_type, compress=compress)
        finally:
            expires = began + self._run.fleet.interval_s
            self._run.loop.call_at(expires, self._texts.pop, (content_type, compress), None)

    def _tables(self, disk_free_bytes: int | None) -> list[FamilyTable]:
        run = self._run
        health = RecorderHealth(run.uid, run.started_at, run.recorder, not run.interruption, disk_free_bytes)
        return fleet_tables(run.fleet, run.now(), run.job_id, health)


def metrics_router(scrapes: Scrapes) -> APIRouter:
    """Return the call that Prometheus scrapes."""
    router = APIRouter(tags=["Prometheus"])

    @router.get(
        "/metrics",
        response_class=Response,
        responses=problems()
        | {200: {"content": {"text/plain": _TEXT, "application/openmetrics-text": _TEXT}}},
    )
    async def metrics(request: Request) -> Response:
        """Return all metrics for Prometheus, as OpenMetrics when the Accept header asks for it."""
        content_type = negotiated(request.headers.get("accept", ""))
        compress = "gzip" in request.headers.get("accept-encoding", "")
        try:
            text = await scrapes.text(content_type, compress=compress)
        except RenderingError as error:
            raise HTTPException(503, f"The metrics couldn't be rendered: {error}; scrape again.") from None
        headers = {"Content-Encoding": "gzip"} if compress else {}
        return Response(text, headers=headers, media_type=content_type)

    return router


def _disk_free(recording: Path) -> int | None:
    try:
        return shutil.disk_usage(recording.parent).free
    except OSError:
        return None
