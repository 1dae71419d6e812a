"""Packed stretches: what goes in comes out, and nobody makes much of a little."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gswarm_agent.frame import TABLES
from gswarm_agent.simulated import SimulatedNode, Simulation
from gswarm_agent.wire import MAGIC, Bye, Decoder, Message, Pong, encode
from gswarm_agent.wire_packing import LENGTH, MAX_RATIO, MAX_STRETCH, PACKED, Packer, Unpacker
from gswarm_agent.wire_values import WireError
from tests.unit.test_spool import HELLO, frame

SAID: list[Message] = [HELLO, *(frame(seq) for seq in range(1, 8)), Bye("the end")]


def stretch(content: bytes) -> bytes:
    return LENGTH.pack(PACKED | len(content)) + content


def deflated(content: bytes, how: int = zlib.Z_SYNC_FLUSH) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -13)
    return packer.compress(content) + packer.flush(how)


def heard(stream: bytes) -> list[Message]:
    return list(Decoder().feed(MAGIC + stream))


@given(st.data())
def test_messages_come_out_as_they_went_in_however_they_were_cut(data: st.DataObject) -> None:
    packer, stream = Packer(), b""
    for message in SAID:
        alone = encode(message)
        stream += alone if data.draw(st.booleans(), "unpacked") else packer.pack(alone)
    decoder = Decoder()
    found: list[Message] = []
    stream = b"noise" + MAGIC + stream
    while stream:
        at = data.draw(st.integers(1, len(stream)), "cut")
        found += decoder.feed(stream[:at])
        stream = stream[at:]
    assert found == SAID


@given(st.lists(st.one_of(st.binary(max_size=2000), st.integers(0, 2 * MAX_STRETCH).map(bytes)), max_size=4))
def test_what_is_packed_keeps_to_what_may_be_unpacked(pieces: list[bytes]) -> None:
    packer, unpacker = Packer(), Unpacker()
    for piece in pieces:
        packed, out = packer.pack(piece), b""
        while packed:
            length = LENGTH.unpack_from(packed)[0] & ~PACKED
            body, packed = packed[LENGTH.size : LENGTH.size + length], packed[LENGTH.size + length :]
            out += unpacker.unpack(body)
            assert len(body) * MAX_RATIO >= len(out[-MAX_STRETCH:]) or len(out) > MAX_STRETCH
        assert out == piece


def test_frames_become_half_as_long() -> None:
    node = SimulatedNode(Simulation("sim01", 0, 1, 8, 1, 0))
    readings = [node.read(second * 10**9) for second in range(60, 120)]
    frames = [
        encode(
            TABLES.frame(
                seq,
                seq * 10**9,
                0.25,
                0,
                gpus=reading.gpus,
                host=reading.host,
                processes=reading.processes,
            )
        )
        for seq, reading in enumerate(readings, 1)
    ]
    packer = Packer()
    assert sum(len(packer.pack(one)) for one in frames) < sum(map(len, frames)) / 2


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (stretch(deflated(bytes(200_000))), "more than it may"),
        (stretch(b"\xff" * 20), "damaged"),
        (stretch(deflated(encode(Bye("x")), zlib.Z_FINISH)), "the last"),
        (stretch(deflated(stretch(deflated(encode(Bye("x")))))), "lies in another"),
        (LENGTH.pack(0xFFFFFFFF), "larger than"),
    ],
)
def test_a_stretch_that_is_not_as_it_has_to_be_ends_the_stream(stream: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        heard(stream)


def test_what_is_in_a_stretch_is_checked_as_well() -> None:
    assert heard(stretch(deflated(encode(HELLO)))) == [HELLO]
    with pytest.raises(WireError, match="before the hello"):
        heard(stretch(deflated(encode(frame(1)))))
    with pytest.raises(WireError, match="not msgpack"):
        heard(stretch(deflated(encode(HELLO) + encode(Bye("x"))[:-1] + b"\xc0")) + encode(Pong(HELLO.clock)))  # type: ignore[arg-type]
