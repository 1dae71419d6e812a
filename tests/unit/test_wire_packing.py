"""Tests of packed chunks: they unpack to the same messages, and never to much more than their size."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gswarm_agent.frame import TABLES
from gswarm_agent.simulated import SimulatedNode, Simulation
from gswarm_agent.wire import (
    LENGTH,
    MAGIC,
    MAX_CHUNK,
    MAX_RATIO,
    PACKED,
    Bye,
    Decoder,
    Message,
    Packer,
    Pong,
    Unpacker,
    encode,
)
from gswarm_agent.wire_payload import WireError
from tests.unit.test_spool import HELLO, frame

MESSAGES: list[Message] = [HELLO, *(frame(seq) for seq in range(1, 8)), Bye("the end")]


def chunk(content: bytes) -> bytes:
    return LENGTH.pack(PACKED | len(content)) + content


def deflated(content: bytes, how: int = zlib.Z_SYNC_FLUSH) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -13)
    return packer.compress(content) + packer.flush(how)


def decoded(stream: bytes) -> list[Message]:
    return list(Decoder().feed(MAGIC + stream))


@given(st.data())
def test_messages_packed_or_not_are_decoded_from_pieces_of_any_size(data: st.DataObject) -> None:
    packer, stream = Packer(), b""
    for message in MESSAGES:
        alone = encode(message)
        stream += alone if data.draw(st.booleans(), "unpacked") else packer.pack(alone)
    decoder = Decoder()
    found: list[Message] = []
    stream = MAGIC + stream
    while stream:
        at = data.draw(st.integers(1, len(stream)), "cut")
        found += decoder.feed(stream[:at])
        stream = stream[at:]
    assert found == MESSAGES


@given(st.lists(st.one_of(st.binary(max_size=2000), st.integers(0, 2 * MAX_CHUNK).map(bytes)), max_size=4))
def test_packed_chunks_keep_to_the_bounds_of_the_unpacker(pieces: list[bytes]) -> None:
    packer, unpacker = Packer(), Unpacker()
    for piece in pieces:
        packed, out = packer.pack(piece), b""
        while packed:
            length = LENGTH.unpack_from(packed)[0] & ~PACKED
            body, packed = packed[LENGTH.size : LENGTH.size + length], packed[LENGTH.size + length :]
            out += unpacker.unpack(body)
            assert len(body) * MAX_RATIO >= len(out[-MAX_CHUNK:]) or len(out) > MAX_CHUNK
        assert out == piece


def test_packing_halves_frames() -> None:
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
        (chunk(deflated(bytes(200_000))), "more than allowed"),
        (chunk(b"\xff" * 20), "damaged"),
        (chunk(deflated(encode(Bye("x")), zlib.Z_FINISH)), "ends the stream"),
        (chunk(deflated(chunk(deflated(encode(Bye("x")))))), "inside another"),
        (LENGTH.pack(0xFFFFFFFF), "larger than"),
    ],
)
def test_a_malformed_chunk_is_rejected(stream: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        decoded(stream)


def test_messages_in_a_chunk_are_checked() -> None:
    assert decoded(chunk(deflated(encode(HELLO)))) == [HELLO]
    with pytest.raises(WireError, match="before the hello"):
        decoded(chunk(deflated(encode(frame(1)))))
    with pytest.raises(WireError, match="not msgpack"):
        decoded(chunk(deflated(encode(HELLO) + encode(Bye("x"))[:-1] + b"\xc0")) + encode(Pong(HELLO.clock)))  # type: ignore[arg-type]
