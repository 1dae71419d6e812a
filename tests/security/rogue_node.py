"""Node that lies on standard streams: `python -m tests.security.rogue_node LIE`.

It greets and keeps to the rates of an honest agent; only what it says is wrong.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count

from gswarm_agent.frame import ERROR, GpuFacts, GpuLink, Hello, Note
from gswarm_agent.wire import MAGIC, Lost, Message, encode
from gswarm_agent.wire_payload import MAX_LINKS
from tests.security.hostile_node import SECOND_NS, frame, hello

LAST_YEAR_NS = 7_258_000_000 * SECOND_NS
"""A time in 2199, the last year that a recording may have."""
LIFE = "present"


def noting(*notes: Note) -> Iterator[Message]:
    """Yield a hello and frames that carry these notes."""
    yield hello(LIFE, live=True)
    for seq in count(1):
        yield frame(seq, time.time_ns(), notes)


def introducing(changed: Hello) -> Iterator[Message]:
    """Yield a hello, and then honest frames."""
    yield changed
    for seq in count(1):
        yield frame(seq, time.time_ns())


def late_note() -> Iterator[Message]:
    """An event in the year 2262."""
    return noting(Note("mark", "info", "late", ts_ns=2**63 - 1))


def deep_detail() -> Iterator[Message]:
    """A mark whose values are lists in lists."""
    return noting(Note("mark", "info", "deep", detail="[" * 4000))


def high_index() -> Iterator[Message]:
    """A GPU with an impossibly high index."""
    return introducing(replace(hello(LIFE, live=True), gpus=(GpuFacts(2**40, "GPU-x", "NVIDIA H100"),)))


def brackets() -> Iterator[Message]:
    """Reasons full of brackets and of characters that JSON escapes."""
    reasons = {f"metric {n}": '[{"\\' * 1000 for n in range(100)}
    return introducing(replace(hello(LIFE, live=True), capabilities=reasons))


def changing_links() -> Iterator[Message]:
    """Other links between its GPUs in each hello, which are small to send and a row each on disk."""
    for changed in count():
        links = tuple(GpuLink(0, "", "", changed, None, None) for _ in range(MAX_LINKS))
        yield replace(hello(LIFE, 1, live=True), links=links)


def endless_interval() -> Iterator[Message]:
    """An interval of three hundred million years, for which the node would never be stale."""
    return introducing(replace(hello(LIFE, live=True), interval_ms=2**63 - 1))


def lost_runs() -> Iterator[Message]:
    """Losses of agent runs that never existed."""
    yield hello(LIFE, live=True)
    for _ in range(1000):
        yield Lost(os.urandom(8).hex(), 1, time.time_ns(), "x" * 4096)


def heads_events() -> Iterator[Message]:
    """Events that only the head reports: of the interval, of sessions, of what other nodes hold."""
    kinds = ("interval_changed", "waiting", "session_started", "link_lost", "standstill", "k" * 4096)
    detail = '{"old_ms": 1000, "new_ms": 60000}'
    return noting(*(Note(kind, ERROR, "of the head", ts_ns=LAST_YEAR_NS, detail=detail) for kind in kinds))


def future() -> Iterator[Message]:
    """Samples that will be taken in the year 2199."""
    yield hello(LIFE, live=True)
    for seq in count(1):
        yield frame(seq, LAST_YEAR_NS + seq * SECOND_NS)


def long_reasons() -> Iterator[Message]:
    """Reasons of 4,096 characters for what isn't measured and for losses."""
    described: Hello = hello(LIFE, live=True)
    for seq in count(1, 2):
        yield replace(described, capabilities={"gpu": str(seq) + "x" * 4000})
        yield frame(seq, time.time_ns())
        yield Lost(LIFE, seq + 1, time.time_ns(), "y" * 4096)


def loud() -> Iterator[Message]:
    """Honest frames, and endless output on stderr."""

    def print_on() -> None:
        with suppress(OSError):
            while True:
                os.write(2, b"x" * 65536)

    threading.Thread(target=print_on, daemon=True).start()
    return introducing(hello(LIFE, live=True))


def unending() -> Iterator[Message]:
    """Endless past frames, sent to a head that fetches waiting frames."""
    return leaving("unending", 1)


def overflowing() -> Iterator[Message]:
    """Endless past frames, sent as fast as the head takes them."""
    return leaving("overflowing", 1000, Note("mark", "info", "x" * 4000))


def leaving(node: str, at_once: int, *notes: Note) -> Iterator[Message]:
    """Report waiting frames, and send past ones, so many at once and with these notes."""
    requested = os.read(0, 1 << 16).decode()  # the script that a head sends, with its arguments
    if " attach " not in requested:
        write(b'[{"node": "%s", "pid": null, "lives": [{"frames": 5}]}]' % node.encode())
    elif "--only-left" in requested:
        yield hello("former")
        for seq in count(1):
            past = frame(seq, time.time_ns() - 3600 * SECOND_NS, notes)
            if seq % at_once:
                write(encode(past))
            else:
                yield past
    else:
        yield from introducing(hello(LIFE, live=True))


LIES: dict[str, Callable[[], Iterator[Message]]] = {
    lie.__name__: lie
    for lie in (
        late_note,
        deep_detail,
        high_index,
        brackets,
        changing_links,
        endless_interval,
        lost_runs,
        heads_events,
        future,
        long_reasons,
        loud,
        unending,
        overflowing,
    )
}


def write(data: bytes) -> None:
    """Write all of it on standard output."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]


def main(lie: str) -> None:
    """Tell the lie until the head closes the connection."""
    write(MAGIC)
    for message in LIES[lie]():
        write(encode(message))
        if not isinstance(message, (Hello, Lost)):
            time.sleep(0.2)


if __name__ == "__main__":
    main(sys.argv[1])
