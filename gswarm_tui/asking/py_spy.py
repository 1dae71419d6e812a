"""Asks all nodes for stacks, and lends them py-spy of the extra ``[stacks]`` if they lack it."""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import os
import shutil
import sysconfig
import zlib
from collections.abc import Sequence
from pathlib import Path

from gswarm_agent.asking.steps import STACKS, TOOL
from gswarm_tui.asking import stacks
from gswarm_tui.asking.asking import MIB, Asking
from gswarm_tui.asking.verdict import RankProcess, Verdict

SECONDS, LOAN_S = 8, 60
"""Time for the stacks of a node's ranks, and for sending py-spy to a node."""
LOANS_AT_ONCE = 16
LIMITS = {"seconds": 4, "again_s": 1.0}
"""Time in which an agent looks at each rank, and within which it looks again."""


@functools.cache
def _own() -> bytes:
    """Return the recorder's own program, empty without the extra."""
    folders = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    path = shutil.which("py-spy", path=folders)
    return Path(path).read_bytes() if path else b""


def request(configured: str) -> dict[str, str]:
    """Return the part of a request for stacks that names py-spy; ``configured`` is its path on the nodes."""
    if configured or not _own():
        return {"py_spy": configured}
    return {"digest": hashlib.sha256(_own()).hexdigest(), "machine": os.uname().machine}


@functools.cache
def loan() -> dict[str, str]:
    """Return the request of the step "tool" that puts the recorder's py-spy on a node."""
    packed = base64.b64encode(zlib.compress(_own(), 9)).decode()
    return {"digest": hashlib.sha256(_own()).hexdigest(), "data": packed}


async def ask_stacks(asking: Asking, ranks: Sequence[RankProcess], configured: str = "") -> Verdict:
    """Ask all nodes at once. py-spy first goes to one of those that lack it: others may share its folder."""
    program = await asyncio.to_thread(request, configured)
    requests = {
        node: {"pids": [one.pid for one in ranks if one.node == node], **LIMITS, **program}
        for node in dict.fromkeys(one.node for one in ranks)
    }
    answers = await asking.ask(STACKS, requests, seconds=SECONDS, most=4 * MIB)
    lent: set[str] = set()
    while lacking := [node for node in answers if "need" in answers[node] and node not in lent]:
        borrowers = lacking[: LOANS_AT_ONCE if lent else 1]
        lent.update(borrowers)
        data = await asyncio.to_thread(loan)
        answers |= await asking.ask(TOOL, dict.fromkeys(borrowers, data), seconds=LOAN_S)
        again = {node: requests[node] for node in lacking if "why" not in answers[node]}
        answers |= await asking.ask(STACKS, again, seconds=SECONDS, most=4 * MIB)
    return stacks.judge(answers, ranks)
