"""Scrapes of one interval share one text, also when a scraper leaves while it is rendered."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gswarm_tui.fleet.state import Fleet
from gswarm_tui.server.exposition import OPENMETRICS, PLAIN, FamilyTable
from gswarm_tui.server.scrape import Scrapes


class Renderings:
    """Stands in for ``exposition_text``: each text has a number, and waits until it is allowed."""

    def __init__(self) -> None:
        self.allowed = threading.Event()
        self.asked: list[str] = []

    def text(self, tables: Sequence[FamilyTable], content_type: str) -> bytes:
        assert tables[2].families[0].name == "gswarm_node_up"
        self.asked.append(content_type)
        number = len(self.asked)
        self.allowed.wait()
        return b"%d" % number


@pytest.fixture
async def renderings(monkeypatch: pytest.MonkeyPatch) -> Renderings:
    made = Renderings()
    monkeypatch.setattr("gswarm_tui.server.scrape.exposition_text", made.text)
    return made


def scrapes(interval_ms: int) -> Scrapes:
    run = SimpleNamespace(
        fleet=Fleet(["n1"], interval_ms), loop=asyncio.get_running_loop(), now=lambda: 0.0, path=Path("/x/y"),
        uid="abd2", job_id="", started_at=0.0, recorder=None, interruption="",
    )  # fmt: skip
    return Scrapes(cast(Any, run))


async def test_scrapes_of_an_interval_share_one_rendering_for_each_format(renderings: Renderings) -> None:
    shared = scrapes(60_000)
    leaves = asyncio.create_task(shared.text(PLAIN, compress=False))
    others = [asyncio.create_task(shared.text(PLAIN, compress=False)) for _ in range(3)]
    await asyncio.sleep(0)
    leaves.cancel()
    renderings.allowed.set()
    assert await asyncio.gather(*others) == [b"1"] * 3
    assert await shared.text(PLAIN, compress=False) == b"1"
    assert gzip.decompress(await shared.text(OPENMETRICS, compress=True)) == b"2"
    assert renderings.asked == [PLAIN, OPENMETRICS]


async def test_next_interval_has_a_new_text(renderings: Renderings) -> None:
    shared = scrapes(100)
    renderings.allowed.set()
    assert await shared.text(PLAIN, compress=False) == b"1"
    async with asyncio.timeout(60):
        while await shared.text(PLAIN, compress=False) == b"1":
            await asyncio.sleep(0.01)
