"""Tests of the wire: encoded messages decode from any pieces; anything else is a WireError."""

from __future__ import annotations

import json
import math
import struct
import tracemalloc
from dataclasses import replace

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gswarm_agent.frame import (
    MAX_GAUGE_MS,
    TABLES,
    ClockExchange,
    Frame,
    GpuFacts,
    GpuLink,
    Hello,
    HostFacts,
    Note,
    ProcessSample,
)
from gswarm_agent.metrics import (
    ALL_GROUPS,
    GPU_COLUMNS,
    HOST_COLUMNS,
    LISTING_COLUMNS,
    MAX_INTERVAL_MS,
    MIN_INTERVAL_MS,
    PROCESS_COLUMNS,
)
from gswarm_agent.wire import (
    MAGIC,
    MAX_MESSAGE,
    Ack,
    Bye,
    Configure,
    Decoder,
    JobEnds,
    Lost,
    Message,
    Ping,
    Pong,
    ReadEnergy,
    Start,
    Stop,
    encode,
)
from gswarm_agent.wire_payload import (
    MAX_GPU_INDEX,
    MAX_GPUS,
    MAX_LIVES,
    MAX_NOTES,
    MAX_PROCESSES,
    MAX_TEXT,
    WireError,
)
from tests.block_rows import rows_of

HELLO = Hello(
    agent_version="1",
    life="life",
    interval_ms=1000,
    simulated=False,
    host=HostFacts("n", "b"),
    gpus=(GpuFacts(0, "GPU-0", "x"),),
    capabilities={},
)


def row_of(columns: tuple[str, ...], **values: float) -> tuple[float | None, ...]:
    return tuple(map(values.get, columns))


texts = st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" "), max_size=40)
whole = st.integers(0, 2**63 - 1)
small = st.integers(0, 2**31)
single = st.floats(width=32, allow_nan=False, allow_infinity=False)
numbers = st.one_of(st.none(), st.integers(-(2**63) + 1, 2**64 - 1), single)
clocks = st.builds(ClockExchange, whole, whole, whole)
maybe_text = st.none() | texts
maybe_count = st.none() | small

hosts = st.builds(
    HostFacts, texts, texts, maybe_text, maybe_text, maybe_count, maybe_count, maybe_text, maybe_text
)
details = st.dictionaries(texts, texts | small, max_size=3).map(json.dumps)
gpus = st.builds(
    GpuFacts,
    st.integers(0, MAX_GPU_INDEX),
    texts,
    texts,
    maybe_text,
    maybe_count,
    maybe_count,
    st.none() | single,
    maybe_count,
    maybe_count,
    st.booleans(),
)


def links(count: int) -> st.SearchStrategy[tuple[GpuLink, ...]]:
    """Generate connections of this many GPUs."""
    way = st.builds(GpuLink, st.integers(0, count - 1), texts, texts, small, maybe_text, st.none() | single)
    return st.lists(way, max_size=3).map(tuple) if count else st.just(())


@st.composite
def hellos(draw: st.DrawFn) -> Hello:
    """Generate a hello."""
    facts = tuple(draw(st.lists(gpus, max_size=3)))
    return Hello(
        agent_version=draw(texts),
        life=draw(texts),
        interval_ms=draw(st.integers(MIN_INTERVAL_MS, MAX_INTERVAL_MS)),
        simulated=draw(st.booleans()),
        host=draw(hosts),
        gpus=facts,
        links=draw(links(len(facts))),
        capabilities=draw(st.dictionaries(texts, texts, max_size=3)),
        clock=draw(st.none() | clocks),
    )


@st.composite
def frames(draw: st.DrawFn, hello: Hello) -> Frame:
    """Generate a frame that fits a hello."""

    def row(columns: tuple[str, ...]) -> st.SearchStrategy[tuple[float | None, ...]]:
        measured = st.dictionaries(st.sampled_from(columns), numbers, max_size=4)
        return measured.map(lambda found: tuple(map(found.get, columns)))

    count = len(hello.gpus)
    positions = st.integers(0, count - 1) if count else st.nothing()
    process = st.builds(
        ProcessSample,
        positions,
        whole,
        maybe_text,
        maybe_text,
        maybe_count,
        maybe_count,
        row(PROCESS_COLUMNS),
        maybe_text,
        maybe_text,
        maybe_text,
    )
    note = st.builds(
        Note,
        texts,
        st.sampled_from(["info", "warning", "error"]),
        texts,
        st.none() | positions,
        st.none() | whole,
        st.none() | details,
    )
    gpu_row = st.none() | row(GPU_COLUMNS)
    return TABLES.frame(
        draw(st.integers(1, 2**63 - 1)),
        draw(whole),
        draw(st.floats(0, width=32, allow_nan=False, allow_infinity=False)),
        draw(small),
        gpus=draw(st.lists(gpu_row, min_size=count, max_size=count)),
        host=draw(st.none() | row(HOST_COLUMNS)),
        processes=draw(st.none() | st.lists(process, max_size=3)),
        notes=tuple(draw(st.lists(note, max_size=2))),
        gauge_ms=draw(st.integers(0, MAX_GAUGE_MS)),
        listings={
            kind: draw(st.lists(st.tuples(texts, st.none() | row(names)), max_size=3))
            for kind, names in LISTING_COLUMNS
            if draw(st.booleans())
        },
    )


simple = st.one_of(
    st.builds(
        Start, st.integers(1, 2**31), whole, st.lists(st.tuples(texts, whole), max_size=MAX_LIVES).map(tuple)
    ),
    st.builds(Ping, whole),
    st.builds(Pong, clocks),
    st.builds(Ack, texts, whole),
    st.builds(ReadEnergy),
    st.builds(Configure, st.integers(1, 2**31), st.lists(st.sampled_from(ALL_GROUPS)).map(tuple)),
    st.builds(JobEnds, st.none() | whole, whole),
    st.just(Stop()),
    st.builds(Lost, texts, st.integers(1, 2**63 - 1), whole, texts),
    st.builds(Bye, texts),
)


@st.composite
def streams(draw: st.DrawFn) -> list[Message]:
    """Generate a hello and messages that may follow it."""
    hello = draw(hellos())
    following = draw(st.lists(st.one_of(simple, frames(hello)), max_size=4))
    return [hello, *following]


def decoded(data: bytes, cuts: list[int] | None = None) -> list[Message]:
    decoder, start = Decoder(), 0
    found: list[Message] = []
    for cut in [*sorted(cuts or []), len(data)]:
        found += decoder.feed(data[start:cut])
        start = max(start, cut)
    return found


@given(data=st.data(), messages=streams())
def test_messages_are_decoded_from_pieces_of_any_size(data: st.DataObject, messages: list[Message]) -> None:
    stream = MAGIC + b"".join(map(encode, messages))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
    assert decoded(stream, cuts) == messages


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), messages=streams())
def test_corrupted_bytes_decode_or_raise_wire_error(data: st.DataObject, messages: list[Message]) -> None:
    stream = bytearray(MAGIC + b"".join(map(encode, messages)))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(len(MAGIC), len(stream) - 1))
        stream[place] = data.draw(st.integers(0, 255))
    try:
        found = decoded(bytes(stream))
    except WireError:
        return
    again = MAGIC + b"".join(map(encode, found))
    if not found or isinstance(found[0], Hello):
        assert decoded(again) == found


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | texts
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=12,
)


@given(
    tag=st.sampled_from([0, 1, 2, 3, 4, 5, 6, 16, 17, 18, 19, 20, 21, 22]), body=st.lists(values, max_size=11)
)
def test_messages_of_any_shape_are_rejected_or_can_be_encoded_again(tag: int, body: list[object]) -> None:
    packed = msgpack.packb([tag, *body])
    try:
        found = decoded(MAGIC + struct.pack(">I", len(packed)) + packed)
    except WireError:
        return
    assert decoded(MAGIC + b"".join(map(encode, found))) == found


@pytest.mark.parametrize("part", [b"\x90", b"\x91\xc0", b"\x80", b"\x81\xa0\xc0"])
def test_a_message_of_many_small_parts_is_rejected_before_it_fills_memory(part: bytes) -> None:
    many = b"\xdc\x10\x00" + part * 4096
    packed = b"\x92\x02\xdc\x01\x00" + many * 256
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="more than the 16384 parts allowed"):
            decoded(MAGIC + struct.pack(">I", len(packed)) + packed)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 24 * 2**20  # the message itself, a few times, and its first parts


def test_the_largest_allowed_frame_is_decoded() -> None:
    gpus = tuple(GpuFacts(n, f"GPU-{n}", "x") for n in range(MAX_GPUS))
    hello = Hello("1", "life", 1000, False, HostFacts("n", "b"), gpus, {})
    process = ProcessSample(0, 1, "ada", "python " * 20, 0, 0, (1.5,) * len(PROCESS_COLUMNS))
    note = Note("xid", "error", "XID 13", 0)
    frame = TABLES.frame(
        1,
        1,
        0.0,
        0,
        gpus=((1.5,) * len(GPU_COLUMNS),) * MAX_GPUS,
        host=(1.5,) * len(HOST_COLUMNS),
        processes=(process,) * MAX_PROCESSES,
        notes=(note,) * (MAX_NOTES + 1),
    )
    assert decoded(MAGIC + encode(hello) + encode(frame))[1] == replace(frame, notes=(note,) * MAX_NOTES)


def test_a_message_nested_too_deep_is_rejected_with_a_reason() -> None:
    nested = b"\x91" * 100_000
    with pytest.raises(WireError, match="nested too deep"):
        decoded(MAGIC + struct.pack(">I", len(nested)) + nested)


def test_a_frame_before_the_hello_is_rejected() -> None:
    frame = TABLES.frame(1, 1, 0.0, 0, gpus=(), host=None)
    with pytest.raises(WireError, match="before the hello"):
        decoded(MAGIC + encode(frame))


def test_a_message_too_large_is_rejected_by_its_length_prefix() -> None:
    with pytest.raises(WireError, match="larger"):
        decoded(MAGIC + struct.pack(">I", MAX_MESSAGE + 1))


def test_another_beginning_than_the_magic_is_rejected() -> None:
    with pytest.raises(WireError, match=r"other output .* first message: Welcome to the cluster$"):
        decoded(b"Welcome to the cluster\n")


def test_text_cannot_carry_escapes_line_breaks_or_another_direction_of_writing() -> None:
    bye = Bye("a\x1b[31mb\r\nc\u202ed\x9b")
    assert decoded(MAGIC + encode(bye)) == [Bye("a [31mb  c d ")]


@pytest.mark.parametrize("number", [1e39, -1e39, 10**400, float("inf"), float("nan")])
def test_a_number_out_of_range_is_sent_as_unmeasured(number: float) -> None:
    messages: list[Message] = [
        HELLO,
        TABLES.frame(
            *(1, 1, 0.0, 0),
            gpus=[row_of(GPU_COLUMNS, power_w=number, temp_c=3, energy_mj=number)],
            host=row_of(HOST_COLUMNS, load_1m=2.0, cpu_pct=number),
        ),
    ]
    _, frame = decoded(MAGIC + b"".join(map(encode, messages)))
    assert isinstance(frame, Frame)
    assert rows_of(frame.gpus) == (row_of(GPU_COLUMNS, temp_c=3),)
    assert rows_of(frame.host) == (row_of(HOST_COLUMNS, load_1m=2.0),)


@given(st.integers(-(2**53), 2**53), st.integers(-(2**24), 2**24))
def test_counters_are_exact_beyond_single_precision(counter: int, gauge: int) -> None:
    row = row_of(GPU_COLUMNS, power_w=gauge, energy_mj=counter)
    messages: list[Message] = [HELLO, TABLES.frame(1, 1, 0.0, 0, gpus=[row], host=None)]
    _, frame = decoded(MAGIC + b"".join(map(encode, messages)))
    assert isinstance(frame, Frame)
    assert rows_of(frame.gpus) == (row,)


_GPUS, _HOST = bytes(TABLES.gpus.row_size), bytes(TABLES.host.row_size)
_ONE = [[0], [1], [None], ["x"], [None], [0], ["0"], ["S"], [None], *[[None]] * 4, ["docker"]]
_NUMBERS = bytes(TABLES.processes.row_size)


def frame_message(body: list[object], gauge_ms: int = 1500, listings: object = None) -> bytes:
    """Return a hello, and a frame with these parts."""
    packed: bytes = msgpack.packb([2, *body, gauge_ms, listings or {}])
    return MAGIC + encode(HELLO) + struct.pack(">I", len(packed)) + packed


@given(
    gpus=st.binary(min_size=len(_GPUS), max_size=len(_GPUS)),
    host=st.binary(min_size=len(_HOST), max_size=len(_HOST)),
)
def test_any_bits_in_a_block_are_finite_numbers_or_none(gpus: bytes, host: bytes) -> None:
    _, frame = decoded(frame_message([1, 1, 0.0, 0, gpus, host, None, []]))
    assert isinstance(frame, Frame)
    assert encode(frame) == encode(decoded(MAGIC + encode(HELLO) + encode(frame))[1])
    for number in (*rows_of(frame.gpus)[0], *rows_of(frame.host)[0]):
        assert number is None or math.isfinite(number)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ([1, 1, 0.0, 0, _GPUS[1:], _HOST, None, []], "frame gpus"),
        ([1, 1, 0.0, 0, 2 * _GPUS, _HOST, None, []], "frame gpus"),
        ([1, 1, 0.0, 0, b"", _HOST, None, []], "frame gpus"),
        ([1, 1, 0.0, 0, None, _HOST, None, []], "frame gpus"),
        ([1, 1, 0.0, 0, "x" * 16, _HOST, None, []], "frame gpus"),
        ([1, 1, 0.0, 0, [0.0] * 16, _HOST, None, []], "frame gpus"),
        ([1, 1, 0.0, 0, _GPUS, _HOST + b"\0", None, []], "frame host"),
        ([1, 1, 0.0, 0, _GPUS, None, None, []], "frame host"),
        ([1, 1, 1e39, 0, _GPUS, _HOST, None, []], "frame lateness"),
        ([1, 1, float("nan"), 0, _GPUS, _HOST, None, []], "frame lateness"),
        ([1, 1, 0.0, 0, _GPUS, _HOST, [_ONE[:-1], _NUMBERS], []], "processes"),
        ([1, 1, 0.0, 0, _GPUS, _HOST, [_ONE, bytes(8)], []], "process numbers"),
        ([1, 1, 0.0, 0, _GPUS, _HOST, [[[1], *_ONE[1:]], _NUMBERS], []], "process gpu"),
        ([1, 1, 0.0, 0, _GPUS, _HOST, [[[True], *_ONE[1:]], _NUMBERS], []], "process gpu"),
        ([1, 1, 0.0, 0, _GPUS, _HOST, [[[0], [1, 2], *_ONE[2:]], _NUMBERS], []], "process pid"),
        ([1, 1, 0.0, 0, _GPUS, _HOST, [[[0], [-1], *_ONE[2:]], _NUMBERS], []], "process pid"),
        ([1, 1, 0.0, 0, _GPUS, _HOST, [[[0], [1], [], *_ONE[3:]], _NUMBERS], []], "process user"),
        (
            [1, 1, 0.0, 0, _GPUS, _HOST, [[*_ONE[:3], ["x" * (MAX_TEXT + 1)], *_ONE[4:]], _NUMBERS], []],
            "process command",
        ),
        ([1, 1, 0.0, 0, _GPUS, _HOST, [[*_ONE[:4], [1.5], *_ONE[5:]], _NUMBERS], []], "process rank"),
        ([1, 1, 0.0, 0, _GPUS, _HOST, [[*_ONE[:6], [7], *_ONE[7:]], _NUMBERS], []], "process cpus"),
        ([1, 1, 0.0, 0, _GPUS, _HOST, [[*_ONE[:7], [], *_ONE[8:]], _NUMBERS], []], "process state"),
        ([1, 1, 0.0, 0, _GPUS, _HOST, [[*_ONE[:8], [b"x"], *_ONE[9:]], _NUMBERS], []], "process wchan"),
        ([1, 1, 0.0, 0, _GPUS, _HOST, [[*_ONE[:13], [7], *_ONE[14:]], _NUMBERS], []], "process container"),
    ],
)
def test_a_frame_that_does_not_fit_the_hello_is_rejected(body: list[object], what: str) -> None:
    assert len(decoded(frame_message([1, 1, 0.0, 0, _GPUS, _HOST, [_ONE, _NUMBERS], []]))) == 2
    with pytest.raises(WireError, match=f"malformed {what}$"):
        decoded(frame_message(body))
    with pytest.raises(WireError, match=r"malformed frame gauges$"):
        decoded(frame_message([1, 1, 0.0, 0, _GPUS, _HOST, None, []], gauge_ms=3_600_000))


@pytest.mark.parametrize(
    "listings",
    [
        [],
        {"disks": [[], b""]},
        {"mounts": [["/tmp"], b""]},
        {"mounts": [[1], bytes(32)]},
        {"mounts": [["x"] * 257, bytes(257 * 32)]},
    ],
)
def test_a_listing_that_does_not_fit_the_hello_is_rejected(listings: object) -> None:
    with pytest.raises(WireError, match=r"malformed .*list"):
        decoded(frame_message([1, 1, 0.0, 0, _GPUS, _HOST, None, []], listings=listings or [0]))


def test_commands_of_processes_carry_no_escapes() -> None:
    odd = ProcessSample(
        0, 1, "e\x1bve", "python\n[x]\u202e", None, None, (1.0,) * 14, "0-\x1b7", "S\n", "futex\x07"
    )
    messages: list[Message] = [
        HELLO,
        TABLES.frame(1, 1, 0.0, 0, gpus=[None], host=None, processes=[odd]),
    ]
    _, frame = decoded(MAGIC + b"".join(map(encode, messages)))
    assert isinstance(frame, Frame)
    assert frame.processes is not None
    (process,) = frame.processes.with_rows(rows_of(frame.processes.numbers))
    assert (process.user, process.command) == ("e ve", "python [x] ")
    assert (process.cpus, process.state, process.wchan) == ("0- 7", "S ", "futex ")
