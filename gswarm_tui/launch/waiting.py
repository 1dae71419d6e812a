"""What waits on the nodes: asks the agents of a recording, or what they left, without attaching to them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from gswarm_agent.wire import MAGIC
from gswarm_tui.launch.base import Asking, LaunchError, clean

LONGEST_ANSWER = 4 * 1024 * 1024
ANSWER_S = 60.0


@dataclass(frozen=True)
class FramesWaiting:
    """Frames of one life that a node keeps; times are Unix seconds on the node's clock."""

    life: str
    frames: int
    first: float
    last: float


@dataclass(frozen=True)
class NodeStatus:
    """What a node keeps of a recording; ``pid`` is its agent's, None where none runs.

    ``left`` tells whether there is anything at all: an agent, its frames, or what a killed one leaves.
    """

    pid: int | None
    lives: tuple[FramesWaiting, ...]
    left: bool = True

    @property
    def frames(self) -> int:
        """All frames that wait."""
        return sum(life.frames for life in self.lives)


async def ask_status(launcher: Asking, node: str, recording: str) -> NodeStatus:
    """What a node keeps of the recording with this uid. Raises LaunchError."""
    channel = await launcher.open(node, "status", "--for-head", "--recording", recording)
    said = b""
    try:
        async with asyncio.timeout(ANSWER_S):
            while data := await channel.read():
                said += data
                if len(said) > LONGEST_ANSWER:
                    break
        entries = json.loads(said.removeprefix(MAGIC))
        return NodeStatus(*_read([entry for entry in entries if entry["node"] == node]))
    except TimeoutError:
        raise LaunchError(f"no answer within {ANSWER_S:.0f} s") from None
    except ConnectionError as error:
        raise LaunchError(clean(f"the connection broke: {error}")) from None
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        raise LaunchError("the agent's answer can't be understood") from None
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
