"""Queries nodes for a recording's agents and waiting frames, without connecting as a head."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from gswarm_agent.wire import MAGIC
from gswarm_tui.launch.base import CommandLauncher, LaunchError, clean

LONGEST_REPLY = 4 * 1024 * 1024
REPLY_S = 60.0


@dataclass(frozen=True)
class FramesWaiting:
    """Waiting frames of one life; times are Unix seconds on the node's clock."""

    life: str
    frames: int
    first: float
    last: float


@dataclass(frozen=True)
class NodeStatus:
    """The agent of a recording on a node and its waiting frames; ``pid`` is None if no agent runs.

    ``left`` is whether the node has anything: an agent, frames, or the folder of a killed agent.
    """

    pid: int | None
    lives: tuple[FramesWaiting, ...]
    left: bool = True

    @property
    def frames(self) -> int:
        """The number of waiting frames."""
        return sum(life.frames for life in self.lives)


async def query_status(launcher: CommandLauncher, node: str, recording: str) -> NodeStatus:
    """Return a node's status for the recording with this uid. Raises LaunchError."""
    channel = await launcher.open(node, "status", "--for-head", "--recording", recording)
    reply = b""
    try:
        async with asyncio.timeout(REPLY_S):
            while data := await channel.read():
                reply += data
                if len(reply) > LONGEST_REPLY:
                    break
        entries = json.loads(reply.removeprefix(MAGIC))
        return NodeStatus(*_read([entry for entry in entries if entry["node"] == node]))
    except TimeoutError:
        raise LaunchError(f"no reply within {REPLY_S:.0f} s") from None
    except ConnectionError as error:
        raise LaunchError(clean(f"the connection broke: {error}")) from None
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        raise LaunchError("the agent's reply can't be understood") from None
    finally:
        await channel.close()


def _read(entries: list[dict[str, Any]]) -> tuple[int | None, tuple[FramesWaiting, ...], bool]:
    pids = [int(entry["pid"]) for entry in entries if entry["pid"] is not None]
    lives = tuple(
        FramesWaiting(str(one["life"]), int(one["frames"]), one["first_ns"] / 1e9, one["last_ns"] / 1e9)
        for entry in entries
        for one in entry["lives"]
    )
    return (pids[0] if pids else None), lives, bool(entries)
