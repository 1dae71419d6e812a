"""A real agent process, driven as the head does."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from typing import TypeVar

from gswarm_agent.wire import MAGIC, Decoder, Message, Start, encode

PATIENCE_S = 60.0
M = TypeVar("M", bound=Message)


class Agent:
    """A real agent process, and the messages that it sent."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(
            command or (sys.executable, "-m", "gswarm_agent", "stream", "--simulate", '{"gpus": 2}'),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        self.decoder = Decoder()
        self.heard: list[Message] = []

    def say(self, *messages: Message) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(map(encode, messages)))

    def start(self, interval_ms: int = 100, *resume: tuple[str, int], tell: tuple[Message, ...] = ()) -> None:
        """Send a head's first messages, and these after them."""
        assert self.process.stdin is not None
        self.process.stdin.write(MAGIC)
        self.say(Start(interval_ms, time.time_ns(), resume), *tell)

    def hear(self, kind: type[M], count: int = 1) -> list[M]:
        """Read until this many messages of a kind have arrived in total."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + PATIENCE_S
        while sum(isinstance(m, kind) for m in self.heard) < count:
            ready, _, _ = select.select([self.process.stdout], [], [], deadline - time.monotonic())
            assert ready, f"heard only {self.heard}"
            data = os.read(self.process.stdout.fileno(), 65536)
            assert data, f"ended after {self.heard}: {self.process.stderr and self.process.stderr.read()!r}"
            self.heard += self.decoder.feed(data)
        return [m for m in self.heard if isinstance(m, kind)]

    def end(self) -> int:
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        """Kill the process and close its pipes."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
