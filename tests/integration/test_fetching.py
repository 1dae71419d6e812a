"""Reports are received whole or not at all."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

import pytest

from gswarm_tui.profiling.login_node import receive
from gswarm_tui.profiling.slurm_commands import ProfileError

NAME = "gpu01-rank3-job7.nsys-rep"
CONTENT = bytes(range(256)) * 5000


async def fetch(home: Path, most: int = len(CONTENT), name: str = NAME) -> Path:
    """Receive the report from a stream that breaks off after so many bytes; return its path."""
    stream = asyncio.StreamReader()
    stream.feed_data(CONTENT[:most])
    stream.feed_eof()
    return await receive(stream, home, name, len(CONTENT))


async def test_a_second_report_of_a_name_gets_a_number(tmp_path: Path) -> None:
    for name in (NAME, "gpu01-rank3-job7-2.nsys-rep"):
        path = await fetch(tmp_path)
        assert (path.name, path.read_bytes()) == (name, CONTENT)


@pytest.mark.parametrize("name", [f"../{NAME}", f"/../{NAME}", f"/tmp/{NAME}"])
async def test_a_report_stays_in_the_folder_whatever_its_name(tmp_path: Path, name: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    assert await fetch(home, name=name) == home / NAME
    assert list(tmp_path.iterdir()) == [home]


async def test_transfer_that_breaks_off_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"fetching gpu01-rank3-job7.nsys-rep broke off"):
        await fetch(tmp_path, most=1000)
    assert list(tmp_path.iterdir()) == []


async def test_full_disk_ends_the_transfer_in_one_sentence(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, before[1]))
    try:
        with pytest.raises(ProfileError) as failed:
            await fetch(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (
        str(failed.value)
        == f"{tmp_path}: File too large while fetching {NAME}; the partial copy was removed."
    )
    assert list(tmp_path.iterdir()) == []
