"""Joining an agent that serves already by its socket alone: nothing has to run on its node for that.

Nobody makes sure, as ``attach`` would, that the socket is in a folder of the user's own. So an agent is known
again by its life, which it and the recording know and nobody else: it is asked for that before it is told
anything, and what names another is no agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from gswarm_agent.folder import SOCKET, name_of, tops
from gswarm_agent.wire import MAGIC, QUERY_LIFE
from gswarm_tui.launch.base import Channel
from gswarm_tui.launch.bootstrap import GreetedChannel

ANSWER_S = 5.0
_LONGEST_ADDRESS = 107
_LONGEST_ANSWER = len(MAGIC) + 64


def sockets(recording: str, node: str, top: str = "") -> list[str]:
    """Where an agent may listen, likeliest first; without a ``top`` it is looked for as on this machine."""
    paths = (f"{top}/{name_of(recording, node)}/{SOCKET}" for top in tops(top))
    return [path for path in paths if len(path) <= _LONGEST_ADDRESS]


async def meet(channel: Channel, lives: Collection[str]) -> GreetedChannel | None:
    """The channel of an agent in one of these lives; None of anybody else's, and then it is of no use."""
    said = b""
    channel.write(QUERY_LIFE)
    try:
        async with asyncio.timeout(ANSWER_S):
            while said.count(b"\n") < 2 and len(said) <= _LONGEST_ANSWER and (data := await channel.read()):
                said += data
    except (TimeoutError, ConnectionError):
        return None
    known = (MAGIC + f"{life}\n".encode() for life in lives if life)
    return GreetedChannel(channel, MAGIC) if said in known else None
