"""Metrics of an attached run for Prometheus: rendered on request, at most once an interval."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from gswarm_tui.control.attached import AttachedRun
from gswarm_tui.server.exposition import FamilyTable, RecorderHealth, fleet_tables
from gswarm_tui.server.rendering import RenderingProcess


class Scrapes:
    """Texts of a run's metrics; scrapers that come in the same interval get the same text."""

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


def _disk_free(recording: Path) -> int | None:
    try:
        return shutil.disk_usage(recording.parent).free
    except OSError:
        return None
