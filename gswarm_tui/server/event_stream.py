"""Server-sent events with each new state of the fleet, for pages and scripts that follow a recording.

Each message has the newest samples of all nodes and the findings that hold, so a reader that is slow skips
messages and misses nothing that still holds. Messages are encoded once for all readers of the same metrics.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from gswarm_tui.control.recorder import Recorder
from gswarm_tui.fleet.findings import holding
from gswarm_tui.fleet.node import NodeState
from gswarm_tui.fleet.snapshot import metric_values
from gswarm_tui.printing.json_output import finding_object, utc
from gswarm_tui.server.tokens import Tokens, are_replaced

MAX_READERS = 64
_END = b"event: end\ndata: {}\n\n"

Metrics = frozenset[str] | None
"""Metrics in a message, None for all."""


class FrameStream:
    """Messages about a recorder for any number of readers."""

    def __init__(self, attached: Recorder, tokens: Tokens) -> None:
        self._attached = attached
        self._tokens = tokens
        self._readers = 0
        self._number = 0
        self._frames = -1
        self._closed = False
        self._changed = asyncio.Event()
        self._encoding: dict[Metrics, asyncio.Task[bytes]] = {}

    @property
    def is_full(self) -> bool:
        """Whether no further reader is accepted."""
        return self._readers >= MAX_READERS

    def check(self) -> None:
        """Let readers have a new message if the fleet has new frames; call it when the fleet has changed."""
        frames = sum(node.frames for node in self._attached.fleet.nodes.values())
        if frames != self._frames or self._attached.ended:
            self._frames = frames
            self._number += 1
            self._encoding.clear()
            self._changed.set()
            self._changed = asyncio.Event()

    def close(self) -> None:
        """End all streams, as the server ends; the recording may continue."""
        self._closed = True
        self._changed.set()

    async def messages(self, metrics: Metrics, limit: int | None = None) -> AsyncIterator[bytes]:
        """Yield each message that the reader has time for, up to ``limit``, until the recording ends."""
        self._readers += 1
        try:
            seen = sent = 0
            while not self._attached.ended:
                if seen == self._number:
                    await self._changed.wait()
                if self._closed or are_replaced(self._tokens):
                    return
                if not self._attached.ended:
                    seen = self._number
                    if metrics not in self._encoding:  # the first reader encodes the newest message
                        self._encoding[metrics] = asyncio.create_task(self._encode(metrics, seen))
                    yield await asyncio.shield(self._encoding[metrics])
                    sent += 1
                    if sent == limit:
                        return
            yield _END
        finally:
            self._readers -= 1

    async def _encode(self, metrics: Metrics, number: int) -> bytes:
        now = self._attached.now()
        parts = []
        for node in list(self._attached.fleet.nodes.values()):
            parts.append(json.dumps(_node(node, now, metrics), allow_nan=False, separators=(",", ":")))
            await asyncio.sleep(0)  # other requests are answered meanwhile
        holds = [finding_object(one) for one in holding(self._attached.fleet.findings.values())]
        found = json.dumps(holds, allow_nan=False, separators=(",", ":"))
        data = f'{{"at":"{utc(now)}","findings":{found},"nodes":[{",".join(parts)}]}}'
        return f"id: {number}\nevent: frame\ndata: {data}\n\n".encode()


def _node(node: NodeState, now: float, metrics: Metrics) -> dict[str, Any]:
    """Return a node's state and newest samples."""
    host, gpus = metric_values(node, metrics)
    return {
        "node": node.name,
        "state": node.standing(now).value,
        "sampled_at": utc(node.last_ts),
        "host": host,
        "gpus": [{"gpu_index": fact.index, **values} for fact, values in zip(node.facts, gpus, strict=True)],
    }
