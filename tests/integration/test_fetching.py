"""Reports are received whole or not at all, also after the output of a command on a login node."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import Sequence
from pathlib import Path

import pytest

from gswarm_tui.profiling.fetching import RemoteReport, check_room, receive
from gswarm_tui.profiling.login_node import MarkedStream
from gswarm_tui.profiling.slurm_commands import ProfileError, kept

CONTENT = bytes(range(256)) * 5000
REPORT = RemoteReport("gpu01", "/tmp/x/gpu01-rank3-job7.nsys-rep", len(CONTENT), 1_700_000_000)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return an empty folder for reports."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


async def fetch(home: Path, most: int = len(CONTENT)) -> tuple[Path, int]:
    """Fetch the report from a step that breaks off after so many bytes; return its path and what came."""
    (home.parent / "report").write_bytes(CONTENT)
    sizes: list[int] = []
    async with kept(["head", "-c", str(most), str(home.parent / "report")]) as command:
        path = await receive(REPORT, home, command.read, sizes.append)
    return path, sum(sizes)


async def test_reports_keep_name_and_time_and_a_second_one_gets_a_number(home: Path) -> None:
    assert REPORT.rank == 3
    for name in ("gpu01-rank3-job7.nsys-rep", "gpu01-rank3-job7-2.nsys-rep"):
        path, came = await fetch(home)
        assert (path.name, path.read_bytes(), path.stat().st_mtime) == (name, CONTENT, 1_700_000_000)
        assert came == len(CONTENT)


async def test_transfer_that_breaks_off_leaves_no_file(home: Path) -> None:
    with pytest.raises(ProfileError, match=r"gpu01: fetching gpu01-rank3-job7.nsys-rep broke off"):
        await fetch(home, most=1000)
    assert list(home.iterdir()) == []


async def test_full_disk_ends_the_transfer_in_one_sentence(home: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    (home.parent / "report").write_bytes(CONTENT)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, before[1]))
    try:
        with pytest.raises(ProfileError) as failed:
            async with kept(["cat", str(home.parent / "report")]) as command:
                await receive(REPORT, home, command.read, lambda _size: None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(failed.value) == (
        f"{home}: File too large while fetching gpu01-rank3-job7.nsys-rep; the partial copy was removed."
    )
    assert list(home.iterdir()) == []


def test_reports_that_do_not_fit_are_refused_before_the_transfer(home: Path) -> None:
    wanted = r"home has .* free, and the reports take 1,152,922 TB; free some space"
    with pytest.raises(ProfileError, match=wanted):
        check_room(home, 1 << 60)


async def streamed(pieces: Sequence[bytes]) -> tuple[dict[str, int], bytes, dict[str, int], bytes]:
    """Feed a stream with these pieces; return both objects, the command's output, and the rest."""
    reader = asyncio.StreamReader()
    for piece in pieces:
        reader.feed_data(piece)
    reader.feed_eof()
    stream, output = MarkedStream(reader, b"\0mark "), bytearray()
    begun = await stream.after_mark(lambda _noise: None)
    ended = await stream.after_mark(output.extend)
    rest = b""
    while data := await stream.read(7):
        rest += data
    return begun, bytes(output), ended, rest


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
async def test_output_of_the_command_is_between_the_marks_wherever_pieces_end(size: int) -> None:
    output = b"epoch 1\n\0\0mark\0 \xff\0mar"
    sent = b"motd\0\n\0mark " + json.dumps({"a": 1}).encode() + b"\n" + output
    sent += b"\0mark " + json.dumps({"b": 2}).encode() + b"\n" + CONTENT[:1000]
    pieces = [sent[at : at + size] for at in range(0, len(sent), size)]
    assert await streamed(pieces) == ({"a": 1}, output, {"b": 2}, CONTENT[:1000])


async def test_output_that_ends_before_the_second_mark_is_passed_on() -> None:
    with pytest.raises(EOFError):
        await streamed([b"\0mark {}\nepoch 1\n\0ma"])
