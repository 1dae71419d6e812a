"""Delivery: over connections that break at any point, a head gets every frame once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gswarm_agent import delivery
from gswarm_agent.delivery import Delivery
from gswarm_agent.folder import Folder
from gswarm_agent.frame import ClockExchange, Frame, Hello
from gswarm_agent.spool import Spool
from gswarm_agent.wire import MAGIC, Ack, Bye, Decoder, Lost, Message, Ping, Pong, Start, encode
from tests.unit.test_spool import HELLO, frame

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("measure"), st.integers(1, 30)),
        st.tuples(st.just("send"), st.integers(1, 3)),
        st.tuples(st.just("cut"), st.integers(0, 400)),
        st.tuples(st.just("commit"), st.integers(0, 10)),
        st.tuples(st.just("spill"), st.just(0)),
        st.tuples(st.sampled_from(["new life", "kill"]), st.just(0)),
    ),
    max_size=25,
)


class StandInHead:
    """A stand-in for a head: its frames on disk, and its present connection."""

    def __init__(self) -> None:
        self.heard: dict[str, list[int]] = {}
        self.committed: dict[str, int] = {}
        self.lost: list[int] = []
        self.life = ""
        self.decoder = Decoder()

    def connect(self, spool: Spool) -> Delivery:
        self.decoder, self.life = Decoder(), ""
        made = Delivery(spool, lambda: 5)
        made.start(Start(1000, 1, tuple(self.committed.items())))
        made.introduce(replace(HELLO, life=spool.life))
        return made

    def hear(self, data: bytes) -> None:
        for message in self.decoder.feed(data):
            if isinstance(message, Hello):
                self.life = message.life
                self.heard.setdefault(self.life, [])
            elif isinstance(message, Frame):
                heard = self.heard[self.life]
                if message.seq > max(heard, default=0):  # what comes again after a cut is known by its number
                    heard.append(message.seq)
            elif isinstance(message, Lost):
                heard = self.heard.setdefault(message.life, [])
                after = max(heard, default=0)
                self.lost += range(after + 1, message.seq + 1)
                heard += range(after + 1, message.seq + 1)

    def commit(self, but: int) -> list[Ack]:
        """Put all but the last frames that arrived of each life on disk."""
        for life, heard in self.heard.items():
            if len(heard) > but:
                self.committed[life] = max(self.committed.get(life, 0), heard[len(heard) - 1 - but])
        return [Ack(life, seq) for life, seq in self.committed.items()]


@pytest.fixture(autouse=True)
def little_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_BATCH_BYTES", 200)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_every_frame_arrives_in_order_or_is_reported_lost_however_connections_break(
    steps: list[tuple[str, int]],
) -> None:
    with TemporaryDirectory() as place:
        folder = Folder(f"{place}/top", "rec@n1", create=True)
        head, measured = StandInHead(), dict[str, int]()

        def new_life() -> Spool:
            spool = Spool(folder, 2_000)
            for life, seq in head.committed.items():
                spool.acknowledge(life, seq)
            life = f"life{len(measured)}"
            spool.begin(replace(HELLO, life=life))
            measured[life] = 0
            return spool

        spool = new_life()
        connection = head.connect(spool)
        for what, number in [*steps, ("cut", 0), ("send", 10_000), ("commit", 0)]:
            if what == "measure":
                for _ in range(number):
                    measured[spool.life] += 1
                    spool.put(frame(measured[spool.life]))
            elif what == "send":
                for _ in range(number):
                    head.hear(connection.take())
            elif what == "cut":
                head.hear(connection.take()[:number])
                connection = head.connect(spool)
            elif what == "commit":
                for ack in head.commit(number):
                    spool.acknowledge(ack.life, ack.seq)
            elif what == "spill":
                spool.spill()
            else:
                if what == "new life":
                    spool.spill()
                spool = new_life()
                connection = head.connect(spool)
        wanted = {life: list(range(1, count + 1)) for life, count in measured.items() if count}
        assert {life: seqs for life, seqs in head.heard.items() if seqs} == wanted
        assert not head.lost or "kill" in dict(steps)
        assert spool.empty
        folder.close()


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    """Return a spool with frames of two lives."""
    folder = Folder(str(tmp_path / "top"), "rec@n1", create=True)
    for life in ("one", "two"):
        spool = Spool(folder)
        spool.begin(replace(HELLO, life=life))
        for seq in range(1, 6):
            spool.put(frame(seq))
        spool.spill()
    yield spool
    folder.close()


def said(made: Delivery) -> list[Message]:
    found, decoder = list[Message](), Decoder()
    while data := made.take():
        found += decoder.feed(data)
    return found


def test_the_time_comes_before_former_lives_and_their_hellos_have_no_clock(spool: Spool) -> None:
    made = Delivery(spool, lambda: 5)
    made.start(Start(1000, 1))
    made.introduce(replace(HELLO, life="two"))
    first, *rest = said(made)
    assert first == Pong(ClockExchange(1, 5, 5))
    hellos = [message for message in rest if isinstance(message, Hello)]
    assert [(hello.life, hello.clock) for hello in hellos] == [("one", None), ("two", ClockExchange(1, 5, 5))]


def test_pongs_overtake_frames(spool: Spool) -> None:
    for seq in range(6, 30):
        spool.put(frame(seq))
    made = Delivery(spool, lambda: 5)
    made.start(Start(1000, 1, (("one", 5),)))
    made.introduce(replace(HELLO, life="two"))
    decoder = Decoder()
    list(decoder.feed(made.take()))
    assert list(made.receive(MAGIC + encode(Ping(9)) + encode(Ack("two", 1)))) == [Ack("two", 1)]
    first, *rest = decoder.feed(made.take())
    assert first == Pong(ClockExchange(9, 5, 5))
    assert rest


def test_agent_sends_only_the_magic_before_the_start_and_nothing_after_the_bye(spool: Spool) -> None:
    made = Delivery(spool, lambda: 5)
    assert made.take() == MAGIC
    assert made.take() == b""
    made.start(Start(1000, 1))
    made.end("done")
    decoder = Decoder()
    assert list(decoder.feed(MAGIC + made.take()))[-1] == Bye("done")
    assert made.ended
    assert made.take() == b""


def test_a_life_that_is_introduced_again_does_not_interrupt_a_former_one(spool: Spool) -> None:
    made = Delivery(spool, lambda: 5)
    made.start(Start(1000, 1))
    made.introduce(replace(HELLO, life="two"))
    decoder = Decoder()
    list(decoder.feed(made.take()))
    other = replace(HELLO, life="two", capabilities={"power_w": "it went away"})
    made.introduce(other)
    found = list[Message]()
    while data := made.take():
        found += decoder.feed(data)
    assert [message for message in found if isinstance(message, Hello)] == [
        replace(other, clock=ClockExchange(1, 5, 5))
    ]
    made.introduce(HELLO)
    assert list(decoder.feed(made.take())) == [HELLO]
