"""Queries nodes for a recording's agents and waiting frames, without connecting as a head."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from gswarm_agent.wire import MAGIC
from gswarm_agent.wire_payload import MAX_INTEGER
from gswarm_tui.launch.base import Launcher, LaunchError, clean

LONGEST_REPLY = 4 * 1024 * 1024
REPLY_S = 60.0


@dataclass(frozen=True)
class NodeStatus:
    """The agent of a recording on a node and its waiting frames; ``pid`` is None if no agent runs.

    ``left`` is whether the node has anything: an agent, frames, or the folder of a killed agent.
    """

    pid: int | None
    frames: int
    left: bool = True


async def query_status(launcher: Launcher, node: str, recording: str) -> NodeStatus:
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
        return _read([entry for entry in entries if entry["node"] == node])
    except TimeoutError:
        raise LaunchError(f"no reply within {REPLY_S:.0f} s") from None
    except ConnectionError as error:
        raise LaunchError(clean(f"the connection broke: {error}")) from None
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        raise LaunchError("the agent's reply can't be understood") from None
    finally:
        await channel.close()


def _read(entries: list[dict[str, Any]]) -> NodeStatus:
    pids = [int(entry["pid"]) for entry in entries if entry["pid"] is not None]
    frames = sum(int(life["frames"]) for entry in entries for life in entry["lives"])
    if not 0 <= frames <= MAX_INTEGER:  # Python prints no number of 5,000 digits
        raise ValueError("frames")
    return NodeStatus(pids[0] if pids else None, frames, bool(entries))
