"""A compromised node: random messages of every kind that the wire accepts."""

from __future__ import annotations

import random
from collections.abc import Iterator

from gswarm_agent.frame import (
    TABLES,
    ClockExchange,
    Frame,
    GpuFacts,
    Hello,
    HostFacts,
    Note,
    ProcessSample,
    Row,
)
from gswarm_agent.metrics import (
    GPU_COLUMNS,
    HOST_COLUMNS,
    MAX_INTERVAL_MS,
    MIN_INTERVAL_MS,
    PROCESS_COLUMNS,
)
from gswarm_agent.wire import MAGIC, Decoder, encode
from gswarm_agent.wire_payload import MAX_GPU_INDEX
from gswarm_tui.fleet.events import Event, FrameArrived, LinkChanged, LinkMeasured, NodeIntroduced, Phase

TEXTS = (
    "",
    "gpu",
    "\x1b[2J\x1b]0;taken\x07",
    "\x9b31m",
    "\x00",
    "a\nb\r\tc\u2028d",
    "\u202eleft to right\u2066",
    "\u200b" * 50,
    "e" + "\u0301" * 400,
    "\N{FAMILY}\u200d" * 300,
    "\N{ARABIC LIGATURE BISMILLAH AR-RAHMAN AR-RAHEEM}" * 200,
    "[bold red]x[/]",
    "[@click=app.quit]x[/]",
    "[/]",
    "'; DROP TABLE events; --",
    "%s%n{0}$(reboot)`reboot`",
    "x" * 4096,
)
NUMBERS = (None, 0, -1, 1, 100, 1e9, 1e-38, 3.4e38, -3.4e38, 2**63 - 1, -(2**62), 2**64 - 1)
WHOLE = (0, 1, 7, 2**62, 2**63 - 1)
LIVES = ("one", "two", "three")


class HostileNode:
    """Makes the events that the link of a compromised node would publish; ``now`` is the head's time."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self._rng = random.Random(seed)
        self._later = 0

    def connection(self, now: float) -> Iterator[Event]:
        """Yield one connection's events: a hello, frames, impossible clocks, perhaps an end."""
        choose = self._rng.choice
        hello = self._hello(choose((*LIVES, f"life {now}")), choose((0, 1, 4, 9)))
        frames = [encode(self._frame(hello, now)) for _ in range(4)]
        offset = choose((0.0, 0.0, 1e10, -1e10))
        for message in Decoder().feed(MAGIC + encode(hello) + b"".join(frames)):
            if isinstance(message, Hello):
                hello = message
                yield NodeIntroduced(self.name, now, message, choose((True, False, False)))
                yield LinkChanged(self.name, now, Phase.LIVE)
                yield LinkMeasured(self.name, now, offset, abs(offset))
            elif isinstance(message, Frame):
                yield FrameArrived(self.name, now, message.ts_ns / 1e9 - offset, hello.life, message)
        if choose((True, False)):
            yield LinkChanged(self.name, now, Phase.LOST, "the agent ended", "", choose((None, now + 60)))

    def _text(self) -> str:
        return self._rng.choice(TEXTS)

    def _maybe_text(self) -> str | None:
        return self._rng.choice((None, *TEXTS))

    def _maybe(self) -> int | None:
        return self._rng.choice((None, *WHOLE))

    def _row(self, width: int) -> Row:
        return tuple(self._rng.choice(NUMBERS) for _ in range(width))

    def _hello(self, life: str, gpus: int) -> Hello:
        text, maybe, maybe_text = self._text, self._maybe, self._maybe_text
        return Hello(
            agent_version=text(),
            life=life,
            interval_ms=self._rng.choice((MIN_INTERVAL_MS, 1000, MAX_INTERVAL_MS)),
            simulated=self._rng.choice((True, False)),
            host=HostFacts(
                text(), text(), maybe_text(), maybe_text(), maybe(), maybe(), maybe_text(), maybe_text()
            ),
            gpus=tuple(
                GpuFacts(
                    self._rng.choice((index, 0, MAX_GPU_INDEX)),
                    self._rng.choice((text(), f"GPU-{index}")),
                    text(),
                    maybe_text(),
                    maybe(),
                    maybe(),
                    self._rng.choice((None, -1.0, 3.4e38)),
                    maybe(),
                    maybe(),
                    self._rng.choice((True, False)),
                )
                for index in range(gpus)
            ),
            capabilities={text(): text() for _ in range(3)} | {"gpu": text(), "processes": text()},
            clock=ClockExchange(*self._rng.choices(WHOLE, k=3)),
        )

    def _frame(self, hello: Hello, now: float) -> Frame:
        choose, gpus = self._rng.choice, range(len(hello.gpus))
        self._later += choose((1, 1, 2**40))
        return TABLES.frame(
            seq=self._later,
            ts_ns=choose((*WHOLE, round(now * 1e9) + self._later)),
            late_ms=choose((0.0, -1.0, 3.4e38)),
            missed=choose(WHOLE),
            gpus=tuple(choose((None, self._row(len(GPU_COLUMNS)))) for _ in gpus),
            host=choose((None, self._row(len(HOST_COLUMNS)))),
            processes=tuple(
                ProcessSample(
                    choose(gpus),
                    choose(WHOLE),
                    self._maybe_text(),
                    self._maybe_text(),
                    self._maybe(),
                    self._maybe(),
                    self._row(len(PROCESS_COLUMNS)),
                    *(self._maybe_text() for _ in range(3)),
                )
                for _ in (*gpus, *gpus)
            ),
            notes=tuple(
                Note(self._text(), choose(("info", "error")), self._text(), choose((None, *gpus)))
                for _ in range(2)
            ),
        )
