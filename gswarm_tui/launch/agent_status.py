"""Runs a command of the agent on a node, such as ``status``, without connecting as a head."""

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

    def parse(entries: Any) -> NodeStatus:
        return _status([entry for entry in entries if entry["node"] == node])

    return await _query(launcher, node, parse, "status", "--for-head", "--recording", recording)


async def query_check(launcher: Launcher, node: str) -> dict[str, Any]:
    """Return the checks of a node by the names of ``NodeReport``. Raises LaunchError."""

    def parse(reply: Any) -> dict[str, Any]:
        return {name: read(reply[name]) for name, read in _CHECKS.items()}

    return await _query(launcher, node, parse, "check", "--for-head")


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


def _status(entries: list[dict[str, Any]]) -> NodeStatus:
    pids = [int(entry["pid"]) for entry in entries if entry["pid"] is not None]
    frames = sum(int(life["frames"]) for entry in entries for life in entry["lives"])
    if not 0 <= frames <= MAX_INTEGER:  # Python prints no number of 5,000 digits
        raise ValueError("frames")
    return NodeStatus(pids[0] if pids else None, frames, bool(entries))


def _text(value: object) -> str:
    return clean(str(value))


def _maybe_text(value: object) -> str | None:
    return None if value is None else _text(value)


def _maybe_whole(value: object) -> int | None:
    if value is None:
        return None
    if type(value) is not int or abs(value) > MAX_INTEGER:
        raise ValueError("a number")
    return value


def _maybe_flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _texts(values: list[object]) -> tuple[str, ...]:
    return tuple(map(_text, values[:_MOST_TEXTS]))


_CHECKS: dict[str, Callable[[Any], object]] = {
    "agent_version": _text,
    "python": _text,
    "python_version": _text,
    "spool_folder": _maybe_text,
    "spool_free_mib": _maybe_whole,
    "spool_problems": _texts,
    "perf_event_paranoid": _maybe_whole,
    "gpu_counters_admin_only": _maybe_flag,
    "likwid_lock_owner": _maybe_text,
    "counter_privileges": _texts,
    "counter_obstacle": _maybe_text,
    "cpu_counters": _maybe_text,
    "gpu_counters": _maybe_text,
    "counter_tools": _texts,
    "counters_in_use_by": _maybe_text,
}
"""Replies to the agent's command ``check`` (see ``gswarm_agent.checks``), and how each is read."""
