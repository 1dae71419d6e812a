"""Connects to a running agent through its socket alone, without a process on its node.

Nothing checks, as ``attach`` would, that the socket is in a folder of the user's own. So the agent has to
name its life first, which only it and the recording know; a process that names another one is no agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from gswarm_agent.folder import SOCKET, name_of, tops
from gswarm_agent.wire import MAGIC, QUERY_LIFE
from gswarm_tui.launch.base import Channel
from gswarm_tui.launch.bootstrap import GreetedChannel

REPLY_S = 5.0
_LONGEST_ADDRESS = 107
_LONGEST_REPLY = len(MAGIC) + 64


def sockets(recording: str, node: str, top: str = "") -> list[str]:
    """Return the paths on which an agent may listen, likeliest first; ``top`` is empty if unknown."""
    paths = (f"{top}/{name_of(recording, node)}/{SOCKET}" for top in tops(top))
    return [path for path in paths if len(path) <= _LONGEST_ADDRESS]


async def identify(channel: Channel, lives: Collection[str]) -> GreetedChannel | None:
    """Return the channel if an agent in one of these lives is at its other end, else None."""
    reply = b""
    channel.write(QUERY_LIFE)
    try:
        async with asyncio.timeout(REPLY_S):
            while reply.count(b"\n") < 2 and len(reply) <= _LONGEST_REPLY and (data := await channel.read()):
                reply += data
    except (TimeoutError, ConnectionError):
        return None
    known = (MAGIC + f"{life}\n".encode() for life in lives if life)
    return GreetedChannel(channel, MAGIC) if reply in known else None
