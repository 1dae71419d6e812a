"""Runs a command of the agent on a node, such as ``status``, without connecting as a recorder."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from gswarm_agent.wire import MAGIC
from gswarm_agent.wire_payload import MAX_INTEGER
from gswarm_tui.launch.base import Launcher, LaunchError, clean

T = TypeVar("T")

LONGEST_REPLY = 4 * 1024 * 1024
REPLY_S = 60.0
_MOST_TEXTS = 8


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

    def parse(reply: Any) -> NodeStatus:
        entries = [entry for entry in reply if entry["node"] == node]
        pids = [int(entry["pid"]) for entry in entries if entry["pid"] is not None]
        frames = sum(int(life["frames"]) for entry in entries for life in entry["lives"])
        if not 0 <= frames <= MAX_INTEGER:  # Python prints no number of 5,000 digits
            raise ValueError("frames")
        return NodeStatus(pids[0] if pids else None, frames, bool(entries))

    return await _query(launcher, node, parse, "status", "--recording", recording)


async def query_check(launcher: Launcher, node: str) -> dict[str, Any]:
    """Return the checks of a node by the names of ``NodeReport``. Raises LaunchError."""
    return await _query(launcher, node, _check, "check")


async def _query(launcher: Launcher, node: str, parse: Callable[[Any], T], *arguments: str) -> T:
    channel = await launcher.open(node, *arguments)
    reply = b""
    try:
        async with asyncio.timeout(REPLY_S):
            while data := await channel.read():
                reply += data
                if len(reply) > LONGEST_REPLY:
                    break
        return parse(json.loads(reply.removeprefix(MAGIC)))
    except TimeoutError:
        raise LaunchError(f"no reply within {REPLY_S:.0f} s") from None
    except ConnectionError as error:
        raise LaunchError(clean(f"the connection broke: {error}")) from None
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError, AttributeError):
        raise LaunchError("the agent's reply can't be understood") from None
    finally:
        await channel.close()


def _check(reply: dict[str, Any]) -> dict[str, Any]:
    """Return a reply to the agent's command ``check`` with cleaned texts; see ``gswarm_agent.checks``."""
    texts = {name: None if reply[name] is None else clean(str(reply[name])) for name in _TEXTS}
    lists = {name: tuple(clean(str(each)) for each in reply[name][:_MOST_TEXTS]) for name in _LISTS}
    numbers = {name: None if reply[name] is None else int(reply[name]) for name in _NUMBERS}
    if any(number is not None and abs(number) > MAX_INTEGER for number in numbers.values()):
        raise ValueError("a number")
    return {**texts, **lists, **numbers, "gpu_counters_admin_only": reply["gpu_counters_admin_only"]}


_TEXTS = (
    "agent_version", "python", "python_version", "spool_folder", "likwid_lock_owner", "counter_obstacle",
    "cpu_counters", "gpu_counters", "counters_in_use_by",
)  # fmt: skip
_LISTS = ("spool_problems", "counter_privileges", "counter_tools")
_NUMBERS = ("spool_free_mib", "perf_event_paranoid")
