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
_MOST_PROBLEMS = 8
_MOST_WORDS = 8


@dataclass(frozen=True)
class NodeStatus:
    """The agent of a recording on a node and its waiting frames; ``pid`` is None if no agent runs.

    ``left`` is whether the node has anything: an agent, frames, or the folder of a killed agent.
    """

    pid: int | None
    frames: int
    left: bool = True


@dataclass(frozen=True)
class NodeCheck:
    """Report of the agent's command ``check``; see ``gswarm_agent.checks``."""

    agent_version: str
    python: str
    python_version: str
    spool_folder: str | None
    spool_free_mib: int | None
    spool_problems: tuple[str, ...]
    perf_event_paranoid: int | None
    gpu_counters_admin_only: bool | None
    likwid_lock_owner: str | None
    counter_privileges: tuple[str, ...]
    counter_obstacle: str | None
    cpu_counters: str | None
    gpu_counters: str | None
    counter_tools: tuple[str, ...]
    counters_in_use_by: str | None


async def query_status(launcher: Launcher, node: str, recording: str) -> NodeStatus:
    """Return a node's status for the recording with this uid. Raises LaunchError."""

    def parse(entries: Any) -> NodeStatus:
        return _status([entry for entry in entries if entry["node"] == node])

    return await _query(launcher, node, parse, "status", "--for-head", "--recording", recording)


async def query_check(launcher: Launcher, node: str) -> NodeCheck:
    """Return the checks of a node. Raises LaunchError."""
    return await _query(launcher, node, _check, "check", "--for-head")


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


def _check(reply: dict[str, Any]) -> NodeCheck:
    admin_only = reply["gpu_counters_admin_only"]
    return NodeCheck(
        agent_version=_text(reply["agent_version"]) or "?",
        python=_text(reply["python"]) or "?",
        python_version=_text(reply["python_version"]) or "?",
        spool_folder=_text(reply["spool_folder"]),
        spool_free_mib=_whole(reply["spool_free_mib"]),
        spool_problems=tuple(clean(str(each)) for each in reply["spool_problems"][:_MOST_PROBLEMS]),
        perf_event_paranoid=_whole(reply["perf_event_paranoid"]),
        gpu_counters_admin_only=admin_only if isinstance(admin_only, bool) else None,
        likwid_lock_owner=_text(reply["likwid_lock_owner"]),
        counter_privileges=tuple(clean(str(each)) for each in reply["counter_privileges"][:_MOST_WORDS]),
        counter_obstacle=_text(reply["counter_obstacle"]),
        cpu_counters=_text(reply["cpu_counters"]),
        gpu_counters=_text(reply["gpu_counters"]),
        counter_tools=tuple(clean(str(each)) for each in reply["counter_tools"][:_MOST_WORDS]),
        counters_in_use_by=_text(reply["counters_in_use_by"]),
    )


def _text(value: object) -> str | None:
    return None if value is None else clean(str(value))


def _whole(value: object) -> int | None:
    if value is None:
        return None
    if type(value) is not int or abs(value) > MAX_INTEGER:
        raise ValueError("a number")
    return value
